#include "cluster/admin.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/metrics.h"
#include "cluster/frame_types.h"
#include "cluster/grant.h"

namespace landbridge {
namespace {

using nlohmann::json;

std::string AnswerText(const absl::StatusOr<json>& answer) {
  json text;
  if (answer.ok()) {
    text = {{"ok", true}, {"answer", *answer}};
  } else {
    text = {{"ok", false},
            {"code", static_cast<int>(answer.status().code())},
            {"error", std::string(answer.status().message())}};
  }
  return text.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

AdminTable::AdminTable() {
  Add("metrics", [](const json&) -> absl::StatusOr<json> { return json(MetricsRegistry::Global().PrometheusText()); });
  Add("version", [](const json&) -> absl::StatusOr<json> { return json(BuildVersion()); });
  Add("log_level", [](const json& request) -> absl::StatusOr<json> {
    const std::string level = request.contains("level") && request["level"].is_string() ? request["level"] : "";
    if (level == "debug") {
      SetLogLevel(LogLevel::kDebug);
    } else if (level == "info") {
      SetLogLevel(LogLevel::kInfo);
    } else if (level == "warning") {
      SetLogLevel(LogLevel::kWarning);
    } else if (level == "error") {
      SetLogLevel(LogLevel::kError);
    } else {
      return absl::InvalidArgumentError("\"level\" must be debug, info, warning or error");
    }
    return json(level);
  });
}

void AdminTable::Add(const std::string& what, Handler handler) { handlers_[what] = std::move(handler); }

void AdminTable::Add(const std::string& what, std::function<absl::StatusOr<json>(const json&)> handler) {
  Add(what, Handler([handler = std::move(handler)](const json& request, Answer answer) { answer(handler(request)); }));
}

void AdminTable::OnRequest(absl::string_view payload, std::function<void(std::string)> send) const {
  auto answer = [send = std::move(send)](absl::StatusOr<json> result) { send(AnswerText(result)); };
  if (payload.size() > limits::kAdminRequestBytesMax) {
    answer(
        absl::InvalidArgumentError(absl::StrCat("a question has at most ", limits::kAdminRequestBytesMax, " bytes")));
    return;
  }
  const json request = json::parse(payload.begin(), payload.end(), nullptr, false);
  if (!request.is_object() || !request.contains("what") || !request["what"].is_string()) {
    answer(
        absl::InvalidArgumentError("a question is a JSON object with \"what\": one of the things this process knows"));
    return;
  }
  auto it = handlers_.find(request["what"].get<std::string>());
  if (it == handlers_.end()) {
    answer(absl::InvalidArgumentError(absl::StrCat(
        "this process does not know \"", request["what"].get<std::string>().substr(0, 100), "\"; it knows ",
        absl::StrJoin(handlers_, ", ", [](std::string* out, const auto& entry) { *out += entry.first; }))));
    return;
  }
  it->second(request, std::move(answer));
}

class AdminServer::Impl {
 public:
  Impl(Loop* loop, const AdminTable* table) : loop_(loop), table_(table) {}
  ~Impl() {
    for (auto& [id, peer] : peers_) loop_->Cancel(peer.limit);
  }

  absl::Status Listen(absl::string_view address) {
    auto listener = Listener::Listen(loop_, address, [this](std::unique_ptr<Connection> connection) {
      if (peers_.size() >= limits::kAdminConnectionsMax) {
        LogWarning("too many questions at one time: ", connection->peer(), " is turned away");
        return;
      }
      const uint64_t id = ++next_peer_;
      Connection::Handlers handlers;
      handlers.on_frame = [this, id](uint32_t type, absl::string_view payload) { OnFrame(id, type, payload); };
      handlers.on_close = [this, id](const absl::Status& status) { Drop(id, status); };
      connection->Start(std::move(handlers));
      peers_[id].connection = std::move(connection);
      LimitSilence(id);
    });
    if (!listener.ok()) return listener.status();
    listener_ = std::move(*listener);
    return absl::OkStatus();
  }

  void OnFrame(uint64_t id, uint32_t type, absl::string_view payload) {
    auto it = peers_.find(id);
    if (it == peers_.end()) return;
    if (type != kFrameAdminRequest) {
      Drop(id, absl::InvalidArgumentError(absl::StrCat("a frame of type ", type, " makes no sense here")));
      return;
    }
    ++it->second.open;
    loop_->Cancel(std::exchange(it->second.limit, 0));
    table_->OnRequest(payload, [this, id, alive = std::weak_ptr<int>(alive_)](std::string answer) {
      if (alive.expired()) return;
      auto asker = peers_.find(id);
      if (asker == peers_.end()) return;
      asker->second.connection->Send(kFrameAdminAnswer, std::move(answer));
      if (--asker->second.open == 0) LimitSilence(id);
    });
  }

  // Places are few: nobody keeps one without a question.
  void LimitSilence(uint64_t id) {
    peers_.at(id).limit =
        loop_->RunAfter(limits::kHandshakeTimeout, [this, id] { Drop(id, absl::UnavailableError("it asks nothing")); });
  }

  void Drop(uint64_t id, const absl::Status& status) {
    auto it = peers_.find(id);
    if (it == peers_.end()) return;
    if (!absl::IsUnavailable(status)) LogWarning("closed ", it->second.connection->peer(), ": ", status.message());
    loop_->Cancel(it->second.limit);
    peers_.erase(it);
  }

  struct Peer {
    std::unique_ptr<Connection> connection;
    int open = 0;             // questions
    Loop::TimerId limit = 0;  // while there is none
  };

  Loop* const loop_;
  const AdminTable* const table_;
  std::unique_ptr<Listener> listener_;
  uint64_t next_peer_ = 0;
  std::map<uint64_t, Peer> peers_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

AdminServer::AdminServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AdminServer::~AdminServer() = default;

absl::StatusOr<std::unique_ptr<AdminServer>> AdminServer::Listen(Loop* loop, absl::string_view address,
                                                                 const AdminTable* table) {
  auto impl = std::make_unique<Impl>(loop, table);
  if (absl::Status status = impl->Listen(address); !status.ok()) return status;
  return std::unique_ptr<AdminServer>(new AdminServer(std::move(impl)));
}

int AdminServer::port() const { return impl_->listener_->port(); }
std::string AdminServer::address() const { return impl_->listener_->address(); }

absl::StatusOr<json> AskAdmin(absl::string_view address, const json& request, DurationNs timeout) {
  Loop loop;
  std::optional<absl::StatusOr<json>> result;
  auto finish = [&](absl::StatusOr<json> answer) {
    if (!result.has_value()) result = std::move(answer);
    loop.Stop();
  };
  Connection::Handlers handlers;
  handlers.on_frame = [&](uint32_t type, absl::string_view payload) {
    const json answer = json::parse(payload.begin(), payload.end(), nullptr, false);
    if (type != kFrameAdminAnswer || !answer.is_object() || !answer.contains("ok") || !answer["ok"].is_boolean()) {
      finish(absl::UnavailableError(absl::StrCat(address, " answered with something else than JSON")));
    } else if (answer["ok"].get<bool>()) {
      finish(answer.value("answer", json()));
    } else {
      const int code = answer.contains("code") && answer["code"].is_number_integer() ? answer["code"].get<int>() : 0;
      finish(absl::Status(
          code > 0 && code <= 16 ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kFailedPrecondition,
          answer.contains("error") && answer["error"].is_string() ? answer["error"].get<std::string>()
                                                                  : "no reason given"));
    }
  };
  handlers.on_close = [&](const absl::Status& status) { finish(status); };
  auto connection = Connection::Connect(&loop, address, std::move(handlers), timeout);
  connection->Send(kFrameAdminRequest, request.dump(-1, ' ', false, json::error_handler_t::replace));
  loop.RunAfter(timeout, [&] {
    finish(absl::UnavailableError(absl::StrCat(address, " has not answered within ", timeout / kMillisecond, " ms")));
  });
  loop.Run();
  connection.reset();
  return std::move(*result);
}

}  // namespace landbridge
