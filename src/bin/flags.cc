#include "bin/flags.h"

#include <cstdio>
#include <cstdlib>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "cluster/grant.h"

namespace landbridge {

int EditDistance(absl::string_view a, absl::string_view b) {
  const size_t columns = b.size() + 1;
  std::vector<std::vector<int>> rows(a.size() + 1, std::vector<int>(columns));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        rows[i][j] = static_cast<int>(i + j);
        continue;
      }
      int best = std::min({rows[i - 1][j] + 1, rows[i][j - 1] + 1, rows[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) best = std::min(best, rows[i - 2][j - 2] + 1);
      rows[i][j] = best;
    }
  }
  return rows[a.size()][b.size()];
}

Flags::Flags(std::string program, std::string usage) : program_(std::move(program)), usage_(std::move(usage)) {}

void Flags::Add(std::string name, std::string* value, std::string help) {
  flags_.push_back({std::move(name), Kind::kString, value, std::move(help), *value});
}
void Flags::Add(std::string name, std::vector<std::string>* comma_list, std::string help) {
  flags_.push_back({std::move(name), Kind::kList, comma_list, std::move(help), absl::StrJoin(*comma_list, ",")});
}
void Flags::Add(std::string name, int64_t* value, std::string help) {
  flags_.push_back({std::move(name), Kind::kInt, value, std::move(help), absl::StrCat(*value)});
}
void Flags::Add(std::string name, bool* value, std::string help) {
  flags_.push_back({std::move(name), Kind::kBool, value, std::move(help), *value ? "true" : "false"});
}
void Flags::AddIgnored(std::string name, std::string why) {
  flags_.push_back({std::move(name), Kind::kIgnored, nullptr, std::move(why), ""});
}
void Flags::AddPrefix(std::string prefix, std::vector<std::string>* whole, std::string help) {
  prefixes_.push_back({std::move(prefix), whole, std::move(help)});
}

const Flags::Flag* Flags::Find(absl::string_view name) const {
  for (const Flag& flag : flags_) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

absl::Status Flags::Set(const Flag& flag, absl::string_view text) {
  switch (flag.kind) {
    case Kind::kString: *static_cast<std::string*>(flag.value) = std::string(text); return absl::OkStatus();
    case Kind::kList: {
      auto* list = static_cast<std::vector<std::string>*>(flag.value);
      list->clear();
      for (absl::string_view item : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
        list->emplace_back(absl::StripAsciiWhitespace(item));
      }
      return absl::OkStatus();
    }
    case Kind::kInt:
      if (!absl::SimpleAtoi(text, static_cast<int64_t*>(flag.value))) {
        return absl::InvalidArgumentError(absl::StrCat("--", flag.name, "=", text, ": not a whole number"));
      }
      return absl::OkStatus();
    case Kind::kBool:
      if (!absl::SimpleAtob(text, static_cast<bool*>(flag.value))) {
        return absl::InvalidArgumentError(absl::StrCat("--", flag.name, "=", text, ": not true or false"));
      }
      return absl::OkStatus();
    case Kind::kIgnored:
      notices_.push_back(absl::StrCat("--", flag.name, text.empty() ? "" : "=", text, " has no effect: ", flag.help));
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

std::string Flags::NearMatches(absl::string_view name) const {
  std::vector<std::pair<int, std::string>> near;
  for (const Flag& flag : flags_) {
    const int distance = EditDistance(name, flag.name);
    if (distance <= std::max<int>(2, static_cast<int>(flag.name.size()) / 3)) near.emplace_back(distance, flag.name);
  }
  std::sort(near.begin(), near.end());
  if (near.size() > 3) near.resize(3);
  if (near.empty()) return absl::StrCat("see ", program_, " --help");
  return absl::StrCat(
      "did you mean ",
      absl::StrJoin(near, " or ", [](std::string* out, const auto& item) { absl::StrAppend(out, "--", item.second); }),
      "?");
}

absl::Status Flags::Parse(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    absl::string_view arg = argv[i];
    if (!absl::ConsumePrefix(&arg, "--")) {
      if (!absl::ConsumePrefix(&arg, "-") || arg.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat("unexpected argument \"", argv[i], "\": flags look like --name=value"));
      }
    }
    if (arg == "help" || arg == "helpfull" || arg == "h") {
      help_ = true;
      help_full_ = arg == "helpfull";
      continue;
    }
    const Prefix* prefix = nullptr;
    for (const Prefix& candidate : prefixes_) {
      if (absl::StartsWith(arg, candidate.prefix)) prefix = &candidate;
    }
    if (prefix != nullptr) {
      prefix->whole->push_back(absl::StrCat("--", arg));
      continue;
    }
    const size_t equals = arg.find('=');
    absl::string_view name = arg.substr(0, equals);
    const Flag* flag = Find(name);
    if (flag == nullptr && absl::StartsWith(name, "no") && equals == absl::string_view::npos) {
      const Flag* negated = Find(name.substr(2));
      if (negated != nullptr && negated->kind == Kind::kBool) {
        *static_cast<bool*>(negated->value) = false;
        continue;
      }
      if (negated != nullptr && negated->kind == Kind::kIgnored) {
        if (absl::Status status = Set(*negated, "false"); !status.ok()) return status;
        continue;
      }
    }
    if (flag == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("unknown flag --", name, ": ", NearMatches(name)));
    }
    if (equals != absl::string_view::npos) {
      if (absl::Status status = Set(*flag, arg.substr(equals + 1)); !status.ok()) return status;
    } else if (flag->kind == Kind::kBool) {
      *static_cast<bool*>(flag->value) = true;
    } else if (flag->kind == Kind::kIgnored && (i + 1 == argc || absl::StartsWith(argv[i + 1], "-"))) {
      if (absl::Status status = Set(*flag, ""); !status.ok()) return status;
    } else if (i + 1 < argc) {
      if (absl::Status status = Set(*flag, argv[++i]); !status.ok()) return status;
    } else {
      return absl::InvalidArgumentError(absl::StrCat("--", name, " needs a value"));
    }
  }
  return absl::OkStatus();
}

std::string Flags::Help() const {
  std::string out = absl::StrCat(usage_, "\n\nFlags (--name=value):\n");
  for (const Flag& flag : flags_) {
    if (flag.kind == Kind::kIgnored && !help_full_) continue;
    absl::StrAppend(&out, "  --", flag.name);
    if (!flag.default_text.empty()) absl::StrAppend(&out, "  (default ", flag.default_text, ")");
    absl::StrAppend(&out, "\n      ", flag.kind == Kind::kIgnored ? "Taken and ignored: " : "", flag.help, "\n");
  }
  for (const Prefix& prefix : prefixes_) absl::StrAppend(&out, "  --", prefix.prefix, "*\n      ", prefix.help, "\n");
  if (!help_full_) absl::StrAppend(&out, "\n--helpfull lists the flags that are taken and ignored, too.\n");
  return out;
}

std::optional<int> Flags::ParseOrExplain(int argc, char** argv) {
  if (absl::Status status = Parse(argc, argv); !status.ok()) {
    std::fprintf(stderr, "%s: %s\n", program_.c_str(), std::string(status.message()).c_str());
    return kExitUsage;
  }
  if (!help()) return std::nullopt;
  std::fputs(Help().c_str(), stdout);
  return 0;
}

void Flags::LogStart(int argc, char** argv) const {
  const std::vector<std::string> arguments(argv, argv + argc);
  LogInfo("version ", BuildVersion(), ", started as: ", absl::StrJoin(arguments, " "));
  for (const std::string& notice : notices_) LogInfo(notice);
}

std::string TakeClusterSecret() {
  const char* value = std::getenv("LANDBRIDGE_CLUSTER_SECRET");
  std::string secret = value != nullptr ? value : "";
  ::unsetenv("LANDBRIDGE_CLUSTER_SECRET");
  return secret;
}

}  // namespace landbridge
