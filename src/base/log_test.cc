#include "base/log.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include <gtest/gtest.h>

#include "absl/strings/match.h"

namespace landbridge {
namespace {

// What LogPlace says in a process whose standard error is `path` (empty: a pipe).
std::string PlaceWith(const std::string& path) {
  int answer[2];
  EXPECT_EQ(::pipe(answer), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    InitLog("landbridge-x");
    ::dup2(path.empty() ? answer[1] : ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600), STDERR_FILENO);
    const std::string place = LogPlace();
    ::_exit(::write(answer[1], place.data(), place.size()) == static_cast<ssize_t>(place.size()) ? 0 : 1);
  }
  ::close(answer[1]);
  std::string text;
  char buffer[512];
  for (ssize_t n; (n = ::read(answer[0], buffer, sizeof(buffer))) > 0;) text.append(buffer, static_cast<size_t>(n));
  ::close(answer[0]);
  ::waitpid(pid, nullptr, 0);
  return text;
}

TEST(LogPlaceTest, NamesTheFileOrTheProcess) {
  const std::string file = ::testing::TempDir() + "log_place.log";
  EXPECT_EQ(PlaceWith(file), file);
  EXPECT_TRUE(absl::StartsWith(PlaceWith(""), "the standard error of landbridge-x (pid "));
  EXPECT_TRUE(absl::StartsWith(PlaceWith("/dev/null"), "the standard error of landbridge-x (pid "));
  // Clients retry for ever on some words, wherever they stand.
  const std::string bad = ::testing::TempDir() + "INTERNAL.log";
  EXPECT_TRUE(absl::StartsWith(PlaceWith(bad), "the standard error of"));
  ::unlink(file.c_str());
  ::unlink(bad.c_str());
}

}  // namespace
}  // namespace landbridge
