#include "cli/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "cli/plugin_search.h"

namespace landbridge::cli {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

std::string TempPath(const std::string& name) {
  return absl::StrCat(::testing::TempDir(), "/cli_", getpid(), "_", name);
}

TEST(Process, OutputAndEnvironmentReachTheChild) {
  SpawnOptions options;
  options.argv = {"sh", "-c", "echo out $LB_TEST; echo err >&2; exit 7"};
  options.environment = {{"LB_TEST", "value"}};
  options.output_path = TempPath("out");
  absl::StatusOr<pid_t> pid = Spawn(options);
  ASSERT_TRUE(pid.ok()) << pid.status();
  int status = 0;
  ASSERT_EQ(waitpid(*pid, &status, 0), *pid);
  EXPECT_EQ(ExitCodeOf(status), 7);
  EXPECT_EQ(DescribeExit(status), "exited with code 7");
  EXPECT_EQ(*ReadFile(options.output_path), "out value\nerr\n");
}

TEST(Process, ACommandThatDoesNotExistIsAnErrorAtOnce) {
  SpawnOptions options;
  options.argv = {"/no/such/program"};
  const absl::Status status = Spawn(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot run /no/such/program: No such file"));
}

TEST(Process, SignalsAreNamed) {
  SpawnOptions options;
  options.argv = {"sleep", "100"};
  absl::StatusOr<pid_t> pid = Spawn(options);
  ASSERT_TRUE(pid.ok());
  const std::optional<uint64_t> start = ProcessStartTime(*pid);
  ASSERT_TRUE(start.has_value());
  EXPECT_TRUE(IsAlive(*pid, *start));
  EXPECT_FALSE(IsAlive(*pid, *start + 1));  // another process under the same number
  EXPECT_FALSE(WaitUntilGone(*pid, *start, milliseconds(20)));
  kill(*pid, SIGKILL);
  EXPECT_TRUE(WaitUntilGone(*pid, *start, milliseconds(10'000)));
  int status = 0;
  waitpid(*pid, &status, 0);
  EXPECT_EQ(ExitCodeOf(status), 137);
  EXPECT_EQ(DescribeExit(status), "was killed by signal 9 (Killed)");
}

TEST(Process, ChildrenDieWithTheirParent) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  const pid_t parent = fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    SpawnOptions options;
    options.argv = {"sleep", "100"};
    options.own_process_group = true;
    const pid_t child = Spawn(options).value_or(-1);
    if (write(fds[1], &child, sizeof child) != sizeof child) _exit(1);
    pause();
    _exit(0);
  }
  pid_t child = -1;
  ASSERT_EQ(read(fds[0], &child, sizeof child), static_cast<ssize_t>(sizeof child));
  ASSERT_GT(child, 0);
  const uint64_t start = ProcessStartTime(child).value();
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  EXPECT_TRUE(WaitUntilGone(child, start, milliseconds(10'000)));
  close(fds[0]);
  close(fds[1]);
}

TEST(Process, CaptureOutput) {
  EXPECT_EQ(*CaptureOutput({"echo", "hello"}, milliseconds(10'000)), "hello\n");
  EXPECT_THAT(std::string(CaptureOutput({"sh", "-c", "echo no; exit 3"}, milliseconds(10'000)).status().message()),
              HasSubstr("exited with code 3: no"));
  EXPECT_THAT(std::string(CaptureOutput({"sleep", "100"}, milliseconds(50)).status().message()),
              HasSubstr("did not answer in time"));
}

TEST(Process, LogTailShowsTheLastLines) {
  const std::string path = TempPath("log");
  std::ofstream out(path);
  for (int i = 0; i < 30; ++i) out << "line " << i << "\n";
  out.close();
  EXPECT_EQ(LogTail(path, 2), "    line 28\n    line 29\n");
  EXPECT_EQ(LogTail(TempPath("none")), "    (there is no log)\n");
}

TEST(Process, FilesAreReplacedAsAWhole) {
  const std::string path = TempPath("file");
  ASSERT_TRUE(WriteFileAtomically(path, "one").ok());
  ASSERT_TRUE(WriteFileAtomically(path, "two").ok());
  EXPECT_EQ(*ReadFile(path), "two");
  EXPECT_THAT(std::string(WriteFileAtomically("/no/such/folder/f", "x").message()), HasSubstr("/no/such/folder/f"));
}

TEST(PluginSearch, WrongFilesAreRefusedByName) {
  EXPECT_THAT(std::string(CheckPluginFile("/no/such.so").message()), HasSubstr("/no/such.so does not exist"));
  EXPECT_THAT(std::string(CheckPluginFile("/tmp").message()), HasSubstr("is not a file"));
  EXPECT_THAT(std::string(CheckPluginFile("/etc/passwd").message()), HasSubstr("is not a shared object"));
  EXPECT_TRUE(CheckPluginFile("/proc/self/exe").ok());
  EXPECT_EQ(*FindPlugin("/proc/self/exe", ""), "/proc/self/exe");
}

TEST(Process, DescendantsEndWhateverTheyIgnore) {
  // In a process of its own: it adopts orphans from then on.
  const pid_t pid = fork();
  if (pid == 0) {
    AdoptOrphans();
    SpawnOptions options;
    // The shell ends at once; its child, which ignores SIGTERM and has a child of its own, becomes ours.
    options.argv = {"sh", "-c", "(trap '' TERM; sleep 1000 & wait) & echo $!"};
    options.output_path = TempPath("orphans");
    absl::StatusOr<pid_t> shell = Spawn(options);
    options.argv = {"sleep", "1000"};
    absl::StatusOr<pid_t> kept = Spawn(options);
    if (!shell.ok() || !kept.ok()) _exit(1);
    waitpid(*shell, nullptr, 0);
    EndDescendants({*kept}, milliseconds(200));
    if (!ProcessStartTime(*kept).has_value()) _exit(2);
    EndDescendants({}, milliseconds(5000));
    _exit(waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD ? 0 : 3);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(ExitCodeOf(status), 0);
}

TEST(Process, OutputCanBeContinued) {
  SpawnOptions options;
  options.output_path = TempPath("continued");
  for (bool append : {false, true, true}) {
    options.argv = {"echo", "line"};
    options.append_output = append;
    absl::StatusOr<pid_t> pid = Spawn(options);
    ASSERT_TRUE(pid.ok());
    waitpid(*pid, nullptr, 0);
  }
  EXPECT_EQ(*ReadFile(options.output_path), "line\nline\nline\n");
}

}  // namespace
}  // namespace landbridge::cli
