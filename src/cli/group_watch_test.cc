#include "cli/group_watch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/signals.h"

namespace landbridge::cli {
namespace {

// In a process group of its own, so that nobody else is interrupted. Exit code 0: as it should be.
template <typename Body>
int InOwnGroup(Body body) {
  const pid_t pid = fork();
  if (pid == 0) {
    setpgid(0, 0);
    Signals signals;  // blocks SIGINT
    auto watch = GroupWatch::Start();
    _exit(watch.ok() ? body(**watch, signals) : 99);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(GroupWatch, TellsTheGroupsInterruptsFromOurs) {
  EXPECT_EQ(InOwnGroup([](GroupWatch& watch, Signals& signals) {
              const std::chrono::milliseconds soon(5000);
              if (watch.GroupWasInterrupted()) return 1;
              kill(getpid(), SIGINT);
              if (!signals.Next(soon).has_value() || watch.GroupWasInterrupted()) return 2;
              kill(0, SIGINT);  // the whole group
              if (!signals.Next(soon).has_value() || !watch.GroupWasInterrupted()) return 3;
              if (watch.GroupWasInterrupted()) return 4;  // once
              kill(getpid(), SIGINT);
              if (!signals.Next(soon).has_value() || watch.GroupWasInterrupted()) return 5;
              return 0;
            }),
            0);
}

TEST(GroupWatch, OutlivesTheGroupsOtherSignalsAndIsNoLossWhenKilled) {
  EXPECT_EQ(InOwnGroup([](GroupWatch& watch, Signals& signals) {
              kill(watch.pid(), SIGTERM);
              kill(watch.pid(), SIGHUP);
              kill(0, SIGINT);
              if (!signals.Next(std::chrono::milliseconds(5000)).has_value() || !watch.GroupWasInterrupted()) return 1;
              kill(watch.pid(), SIGKILL);
              waitpid(watch.pid(), nullptr, WNOWAIT);
              return watch.GroupWasInterrupted() ? 2 : 0;
            }),
            0);
}

}  // namespace
}  // namespace landbridge::cli
