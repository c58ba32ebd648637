#include "env/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

extern char** environ;

namespace landbridge {

struct Process::Impl {
  uv_process_t handle;
  std::function<void(ProcessExit)> on_exit;
  Loop* loop;
  int pid = 0;
  bool running = false;
};

std::string ProcessExit::ToString() const {
  if (signal != 0) return absl::StrCat("signal ", signal, " (", strsignal(signal), ")");
  return absl::StrCat("exit code ", code);
}

absl::StatusOr<std::unique_ptr<Process>> Process::Spawn(Loop* loop, const ProcessOptions& options,
                                                        std::function<void(ProcessExit)> on_exit) {
  if (options.args.empty()) return absl::InvalidArgumentError("no program to start");
  std::vector<char*> args;
  for (const std::string& arg : options.args) args.push_back(const_cast<char*>(arg.c_str()));
  args.push_back(nullptr);

  std::map<std::string, std::string> variables;
  for (char** at = environ; *at != nullptr; ++at) {
    const char* equals = std::strchr(*at, '=');
    if (equals != nullptr) variables[std::string(*at, static_cast<size_t>(equals - *at))] = equals + 1;
  }
  for (const auto& [name, value] : options.env) variables[name] = value;
  std::vector<std::string> lines;
  for (const auto& [name, value] : variables) lines.push_back(absl::StrCat(name, "=", value));
  std::vector<char*> env;
  for (std::string& line : lines) env.push_back(line.data());
  env.push_back(nullptr);

  std::vector<int> opened;
  auto close_opened = [&] {
    for (int fd : opened) close(fd);
  };
  auto open_log = [&](const std::string& path, int inherited) -> absl::StatusOr<int> {
    if (path.empty()) return inherited;
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0) return absl::InvalidArgumentError(absl::StrCat("cannot write ", path, ": ", strerror(errno)));
    opened.push_back(fd);
    return fd;
  };
  std::vector<uv_stdio_container_t> stdio(3 + options.inherited_fds.size());
  auto inherit = [&](size_t at, int fd) {
    stdio[at].flags = UV_INHERIT_FD;
    stdio[at].data.fd = fd;
  };
  inherit(0, 0);
  for (size_t at : {size_t{1}, size_t{2}}) {
    absl::StatusOr<int> fd = open_log(at == 1 ? options.stdout_file : options.stderr_file, static_cast<int>(at));
    if (!fd.ok()) {
      close_opened();
      return fd.status();
    }
    inherit(at, *fd);
  }
  for (size_t i = 0; i < options.inherited_fds.size(); ++i) inherit(3 + i, options.inherited_fds[i]);
  const int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (options.own_session && null_fd >= 0) inherit(0, null_fd);
  if (null_fd >= 0) opened.push_back(null_fd);

  auto* impl = new Impl{};
  impl->on_exit = std::move(on_exit);
  impl->loop = loop;
  impl->handle.data = impl;
  uv_process_options_t uv_options;
  std::memset(&uv_options, 0, sizeof(uv_options));
  uv_options.file = args[0];
  uv_options.args = args.data();
  uv_options.env = env.data();
  uv_options.cwd = options.working_directory.empty() ? nullptr : options.working_directory.c_str();
  uv_options.flags = options.own_session ? UV_PROCESS_DETACHED : 0;
  uv_options.stdio = stdio.data();
  uv_options.stdio_count = static_cast<int>(stdio.size());
  uv_options.exit_cb = [](uv_process_t* handle, int64_t code, int signal) {
    auto* ended = static_cast<Impl*>(handle->data);
    ended->loop->CountEvent();
    ended->running = false;
    // Running the callback may destroy the owner and with it `ended`.
    auto callback = std::move(ended->on_exit);
    if (callback) callback(ProcessExit{static_cast<int>(code), signal});
  };
  const int error = uv_spawn(loop->uv(), &impl->handle, &uv_options);
  close_opened();
  std::unique_ptr<Process> process(new Process(impl));
  if (error != 0) {
    impl->on_exit = nullptr;
    return absl::InvalidArgumentError(absl::StrCat("cannot start ", options.args[0], ": ", uv_strerror(error)));
  }
  impl->pid = impl->handle.pid;
  impl->running = true;
  return process;
}

Process::~Process() {
  impl_->on_exit = nullptr;
  uv_unref(reinterpret_cast<uv_handle_t*>(&impl_->handle));
  uv_close(reinterpret_cast<uv_handle_t*>(&impl_->handle),
           [](uv_handle_t* handle) { delete static_cast<Impl*>(handle->data); });
}

int Process::pid() const { return impl_->pid; }
bool Process::running() const { return impl_->running; }
void Process::Kill(int signal_number) {
  if (impl_->running) uv_process_kill(&impl_->handle, signal_number);
}

bool DieWithParent(int signal_number, int parent_pid) {
  prctl(PR_SET_PDEATHSIG, signal_number);
  const int parent = getppid();
  // The parent may have died before the call: then we have another one (init or a subreaper).
  return parent_pid == 0 ? parent != 1 : parent == parent_pid;
}

std::string HostName() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

std::string ExecutablePath() {
  std::array<char, 4096> path{};
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size() - 1);
  return size > 0 ? std::string(path.data(), static_cast<size_t>(size)) : "";
}

}  // namespace landbridge
