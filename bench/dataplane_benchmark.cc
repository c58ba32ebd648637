// Data plane between two processes, beside a raw TCP socket in the same run.
//
//   dataplane_benchmark [--rounds N] [--quick] [--no-beside]
//   dataplane_benchmark --shaped MBIT [--rounds N]   over a shaped link between network namespaces (as root)
//   dataplane_benchmark --deaths N                   how soon pulls from N killed peers fail
//
// One JSON line per result. A pull is a round trip (ask, then data), and so is the TCP probe's exchange. Rounds
// alternate over the modes; figures are medians over the rounds. Every pull's bytes are checked once a round.
#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "base/log.h"
#include "dataplane/data_plane.h"
#include "dataplane/socket_data_plane.h"
#include "nlohmann/json.hpp"

extern char** environ;

namespace landbridge::dataplane {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kLargest = 256u << 20;
constexpr PeerId kServer(1001), kClient(1002);

struct Mode {
  std::string name;  // "auto", "tcp", "raw_tcp"
  bool spin = false;
  std::string Label() const { return name + (spin ? "+spin" : ""); }
};

double Micros(Clock::time_point from) { return std::chrono::duration<double, std::micro>(Clock::now() - from).count(); }

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(q * static_cast<double>(values.size())))];
}

// Nanoseconds on a CPU, over all threads of a process.
double CpuNanos(pid_t pid) {
  double total = 0;
  const std::string tasks = absl::StrCat("/proc/", pid, "/task");
  DIR* dir = opendir(tasks.c_str());
  if (dir == nullptr) return 0;
  while (const dirent* entry = readdir(dir)) {
    std::ifstream file(absl::StrCat(tasks, "/", entry->d_name, "/schedstat"));
    double nanos = 0;
    if (file >> nanos) total += nanos;
  }
  closedir(dir);
  return total;
}

void WriteAll(int fd, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = write(fd, at, size);
    if (n <= 0) std::exit(0);  // the other end is done
    at += n;
    size -= static_cast<size_t>(n);
  }
}

void ReadAll(int fd, void* data, size_t size) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t n = read(fd, at, size);
    if (n <= 0) std::exit(0);
    at += n;
    size -= static_cast<size_t>(n);
  }
}

void WriteBlob(int fd, const std::string& blob) {
  const uint64_t size = blob.size();
  WriteAll(fd, &size, sizeof(size));
  WriteAll(fd, blob.data(), size);
}

std::string ReadBlob(int fd) {
  uint64_t size = 0;
  ReadAll(fd, &size, sizeof(size));
  std::string blob(size, '\0');
  ReadAll(fd, blob.data(), size);
  return blob;
}

std::shared_ptr<std::vector<std::byte>> Pattern(uint64_t size) {
  auto bytes = std::make_shared<std::vector<std::byte>>(size);
  for (uint64_t i = 0; i < size; ++i) (*bytes)[i] = static_cast<std::byte>((i * 2654435761u) >> 13);
  return bytes;
}

// Where the two processes are.
struct Place {
  std::vector<std::string> prefix;  // of the serving process's command line
  std::string server = "127.0.0.1", client = "127.0.0.1";
};

std::unique_ptr<DataPlane> MakePlane(PeerId self, const Mode& mode, const std::string& address) {
  DataPlaneOptions options;
  options.self = self;
  SocketOptions sockets;
  sockets.listen_address = address;
  sockets.local_sockets = mode.name != "tcp";
  sockets.spin = mode.spin ? 2 * kMillisecond : 0;
  auto plane = MakeSocketDataPlane(std::move(options), sockets);
  if (!plane.ok()) {
    std::cerr << plane.status() << "\n";
    std::exit(1);
  }
  return *std::move(plane);
}

// --- The serving process: this program with --serve MODE SPIN FD ADDRESS.

int Serve(const Mode& mode, int control, const std::string& ip) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto bytes = Pattern(kLargest);
  if (mode.name == "raw_tcp") {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    inet_pton(AF_INET, ip.c_str(), &address.sin_addr);
    if (bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 || listen(listener, 1) != 0)
      return 1;
    socklen_t length = sizeof(address);
    getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
    WriteBlob(control, absl::StrCat(ntohs(address.sin_port)));
    const int connection = accept(listener, nullptr, nullptr);
    int one = 1;
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    for (;;) {
      uint64_t size = 0;
      ReadAll(connection, &size, sizeof(size));
      WriteAll(connection, bytes->data(), size);
    }
  }
  auto plane = MakePlane(kServer, mode, ip);
  WriteBlob(control, plane->address());
  if (!plane->AddPeer(kClient, ReadBlob(control)).ok()) return 1;
  plane->PublishSpan({1, 1}, {bytes->data(), bytes->size()}, bytes);
  char wait;
  while (read(control, &wait, 1) > 0) {
  }
  plane->Shutdown();
  return 0;
}

// --- The measuring process.

class Peer {
 public:
  explicit Peer(const Mode& mode, const Place& place = {}) : mode_(mode) {
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) std::exit(1);
    char self[4096] = {};
    if (readlink("/proc/self/exe", self, sizeof(self) - 1) <= 0) std::exit(1);
    std::vector<std::string> words = place.prefix;
    for (const std::string& word : {std::string(self), std::string("--serve"), mode_.name,
                                    std::string(mode.spin ? "1" : "0"), std::string("3"), place.server}) {
      words.push_back(word);
    }
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fds[1], 3);
    posix_spawn_file_actions_addclosefrom_np(&actions, 4);
    if (posix_spawnp(&pid_, argv[0], &actions, nullptr, argv.data(), environ) != 0) std::exit(1);
    posix_spawn_file_actions_destroy(&actions);
    close(fds[1]);
    control_ = fds[0];
    const std::string address = ReadBlob(control_);
    if (mode_.name == "raw_tcp") {
      socket_ = socket(AF_INET, SOCK_STREAM, 0);
      sockaddr_in to = {};
      to.sin_family = AF_INET;
      inet_pton(AF_INET, place.server.c_str(), &to.sin_addr);
      to.sin_port = htons(static_cast<uint16_t>(std::stoi(address)));
      if (connect(socket_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) std::exit(1);
      int one = 1;
      setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
      return;
    }
    plane_ = MakePlane(kClient, mode_, place.client);
    WriteBlob(control_, plane_->address());
    if (!plane_->AddPeer(kServer, address).ok()) std::exit(1);
  }
  ~Peer() {
    if (plane_ != nullptr) plane_->Shutdown();
    close(control_);
    if (socket_ >= 0) close(socket_);
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  void Get(void* dst, uint64_t size) {
    if (socket_ >= 0) {
      WriteAll(socket_, &size, sizeof(size));
      ReadAll(socket_, dst, size);
      return;
    }
    absl::Notification done;
    Start(dst, size, [&done](absl::Status) { done.Notify(); });
    done.WaitForNotification();
  }
  void Start(void* dst, uint64_t size, std::function<void(absl::Status)> done) {
    plane_->Pull(kServer, {1, 1}, 0, dst, size, [done = std::move(done)](absl::Status status) {
      if (!status.ok()) {
        std::cerr << status << "\n";
        std::exit(1);
      }
      done(status);
    });
  }
  // Returns when the process is gone, as its parent sees it.
  void Kill() {
    kill(pid_, SIGKILL);
    siginfo_t info;
    waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
  }
  DataPlane& plane() { return *plane_; }
  double CpuNanosOfBoth() const { return CpuNanos(pid_) + CpuNanos(getpid()); }
  const Mode& mode() const { return mode_; }

 private:
  const Mode mode_;
  pid_t pid_ = 0;
  int control_ = -1;
  int socket_ = -1;
  std::unique_ptr<DataPlane> plane_;
};

struct Samples {
  std::vector<double> p50_us, p99_us, cpu_us;
};

int Repeats(uint64_t size, bool quick) {
  const double budget_us = quick ? 30'000 : 200'000;
  const double guess_us = 60 + static_cast<double>(size) / 3000;
  return std::clamp(static_cast<int>(budget_us / guess_us), 3, 2000);
}

void MeasureSize(Peer& peer, std::vector<std::byte>& dst, const std::vector<std::byte>& expected, uint64_t size,
                 bool quick, Samples& out) {
  const int repeats = Repeats(size, quick);
  std::memset(dst.data(), 0, size);
  for (int i = 0; i < std::max(1, repeats / 10); ++i) peer.Get(dst.data(), size);
  if (std::memcmp(dst.data(), expected.data(), size) != 0) {
    std::cerr << "wrong bytes in mode " << peer.mode().Label() << " at size " << size << "\n";
    std::exit(1);
  }
  std::vector<double> times;
  const double cpu = peer.CpuNanosOfBoth();
  for (int i = 0; i < repeats; ++i) {
    const auto start = Clock::now();
    peer.Get(dst.data(), size);
    times.push_back(Micros(start));
  }
  out.cpu_us.push_back((peer.CpuNanosOfBoth() - cpu) / 1000 / repeats);
  out.p50_us.push_back(Quantile(times, 0.5));
  out.p99_us.push_back(Quantile(times, 0.99));
}

// A 4 KiB pull again and again while eight of 256 MiB are under way.
void MeasureBeside(Peer& peer, std::vector<std::byte>& dst, std::vector<double>& p50, std::vector<double>& p99,
                   std::vector<double>& gigabytes) {
  std::vector<double> times;
  absl::BlockingCounter bulk(8);
  std::atomic<int> open{8};
  const auto start = Clock::now();
  for (int i = 0; i < 8; ++i) {
    peer.Start(dst.data(), kLargest, [&](absl::Status) {
      --open;
      bulk.DecrementCount();
    });
  }
  std::vector<std::byte> small(4096);
  while (open.load() == 8) {
    const auto one = Clock::now();
    peer.Get(small.data(), small.size());
    times.push_back(Micros(one));
  }
  bulk.Wait();
  gigabytes.push_back(8.0 * static_cast<double>(kLargest) / Micros(start) / 1000);
  p50.push_back(Quantile(times, 0.5));
  p99.push_back(Quantile(times, 0.99));
}

int Run(int rounds, bool quick, bool beside) {
  const std::vector<Mode> modes = {{"auto", false}, {"tcp", false}, {"auto", true}, {"tcp", true}, {"raw_tcp", false}};
  const std::vector<uint64_t> sizes = {64, 4096, 64u << 10, 1u << 20, 4u << 20, 64u << 20, kLargest};
  std::map<std::pair<std::string, uint64_t>, Samples> samples;
  std::map<std::string, std::array<std::vector<double>, 3>> besides;
  auto expected = Pattern(kLargest);
  std::vector<std::byte> dst(kLargest);
  for (int round = 0; round < rounds; ++round) {
    for (const Mode& mode : modes) {
      Peer peer(mode);
      for (uint64_t size : sizes) {
        MeasureSize(peer, dst, *expected, size, quick, samples[{mode.Label(), size}]);
      }
      if (beside && mode.name != "raw_tcp") {
        auto& b = besides[mode.Label()];
        MeasureBeside(peer, dst, b[0], b[1], b[2]);
      }
    }
  }
  for (const Mode& mode : modes) {
    for (uint64_t size : sizes) {
      const Samples& s = samples[{mode.Label(), size}];
      const double p50 = Quantile(s.p50_us, 0.5);
      const double raw = Quantile(samples[{"raw_tcp", size}].p50_us, 0.5);
      nlohmann::json line = {{"bench", "dataplane_pull"},
                             {"mode", mode.name},
                             {"wake", mode.spin ? "spin" : "block"},
                             {"bytes", size},
                             {"rounds", rounds},
                             {"p50_us", p50},
                             {"p99_us", Quantile(s.p99_us, 0.5)},
                             {"gb_per_s", static_cast<double>(size) / p50 / 1000},
                             {"cpu_us_per_pull", Quantile(s.cpu_us, 0.5)},
                             {"tls", false}};
      if (mode.name != "raw_tcp") line["speed_over_raw_tcp"] = raw / p50;
      std::cout << line.dump() << std::endl;
    }
  }
  for (const auto& [label, b] : besides) {
    const nlohmann::json line = {{"bench", "dataplane_4KiB_beside_8x256MiB"},
                                 {"mode", label},
                                 {"p50_us", Quantile(b[0], 0.5)},
                                 {"p99_us", Quantile(b[1], 0.5)},
                                 {"bulk_gb_per_s", Quantile(b[2], 0.5)},
                                 {"goal_p99_us", 5000}};
    std::cout << line.dump() << std::endl;
  }
  return 0;
}

// --- A shaped link.

// Two ends of a link of `mbit`, one of them in a network namespace of its own. Gone with the object.
class ShapedLink {
 public:
  explicit ShapedLink(int mbit) : name_(absl::StrCat("lb", getpid())) {
    const std::string space = name_, here = name_ + "a", there = name_ + "b",
                      in = absl::StrCat("ip netns exec ", space, " ");
    // Jumbo frames: with small ones headers alone are 4 % of the line.
    const std::string shape = absl::StrCat(" root tbf rate ", mbit, "mbit burst 256kb latency 50ms");
    for (const std::string& command :
         {"ip netns add " + space,
          absl::StrCat("ip link add ", here, " mtu 9000 type veth peer name ", there, " mtu 9000"),
          absl::StrCat("ip link set ", there, " netns ", space), absl::StrCat("ip addr add 10.213.77.1/30 dev ", here),
          absl::StrCat("ip link set ", here, " up"), absl::StrCat(in, "ip addr add 10.213.77.2/30 dev ", there),
          absl::StrCat(in, "ip link set ", there, " up"), absl::StrCat("tc qdisc add dev ", here, shape),
          absl::StrCat(in, "tc qdisc add dev ", there, shape)}) {
      if (std::system((command + " 2>/dev/null").c_str()) != 0) {
        failed_ = command;
        return;
      }
    }
  }
  ~ShapedLink() {
    [[maybe_unused]] int ignored = std::system(absl::StrCat("ip link del ", name_, "a 2>/dev/null").c_str());
    ignored = std::system(absl::StrCat("ip netns del ", name_, " 2>/dev/null").c_str());
  }
  const std::string& failed() const { return failed_; }  // the command that this machine does not permit
  Place place() const { return {{"ip", "netns", "exec", name_}, "10.213.77.2", "10.213.77.1"}; }

 private:
  const std::string name_;
  std::string failed_;
};

int RunShaped(int mbit, int rounds) {
  const ShapedLink link(mbit);
  if (!link.failed().empty()) {
    std::cout
        << nlohmann::json({{"bench", "dataplane_shaped_link"}, {"skipped", "not permitted: " + link.failed()}}).dump()
        << std::endl;
    return 0;
  }
  constexpr uint64_t kSize = 64u << 20;
  auto expected = Pattern(kLargest);
  std::vector<std::byte> dst(kSize);
  std::map<std::string, std::vector<double>> shares;
  for (int round = 0; round < rounds; ++round) {
    for (const char* name : {"tcp", "raw_tcp"}) {
      Peer peer({name, false}, link.place());
      peer.Get(dst.data(), 1u << 20);  // windows open
      const auto start = Clock::now();
      peer.Get(dst.data(), kSize);
      shares[name].push_back(8.0 * static_cast<double>(kSize) / Micros(start) / mbit);
      if (std::memcmp(dst.data(), expected->data(), kSize) != 0) std::exit(1);
    }
  }
  const double ours = Quantile(shares["tcp"], 0.5), raw = Quantile(shares["raw_tcp"], 0.5);
  std::cout << nlohmann::json({{"bench", "dataplane_shaped_link"},
                               {"mbit", mbit},
                               {"bytes", kSize},
                               {"rounds", rounds},
                               {"share_of_line", ours},
                               {"raw_tcp_share_of_line", raw},
                               {"speed_over_raw_tcp", ours / raw},
                               {"goal_share_of_line", 0.97}})
                   .dump()
            << std::endl;
  return 0;
}

// --- Deaths.

int RunDeaths(int peers) {
  for (const char* name : {"auto", "tcp"}) {
    std::vector<double> times;
    std::vector<std::byte> dst(kLargest);
    for (int i = 0; i < peers; ++i) {
      Peer peer({name, false});
      absl::Notification failed;
      Clock::time_point end;
      std::vector<std::byte> waiting(100);
      peer.Get(dst.data(), 1u << 20);
      peer.plane().Pull(kServer, {1, 99}, 0, waiting.data(), waiting.size(), [&](absl::Status status) {
        end = Clock::now();
        if (status.ok()) std::exit(1);
        failed.Notify();
      });
      peer.plane().Pull(kServer, {1, 1}, 0, dst.data(), kLargest, [](absl::Status) {});
      while (peer.plane().Stats().bytes_received < (8u << 20)) std::this_thread::yield();
      peer.Kill();  // in the middle of it
      const auto dead = Clock::now();
      failed.WaitForNotification();
      times.push_back(std::max(0.0, std::chrono::duration<double, std::micro>(end - dead).count()));
    }
    std::cout << nlohmann::json({{"bench", "dataplane_death_to_error"},
                                 {"mode", name},
                                 {"kills", peers},
                                 {"p50_us", Quantile(times, 0.5)},
                                 {"p99_us", Quantile(times, 0.99)},
                                 {"goal_us", 50'000}})
                     .dump()
              << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace landbridge::dataplane

int main(int argc, char** argv) {
  using namespace landbridge::dataplane;
  signal(SIGPIPE, SIG_IGN);
  if (argc == 6 && std::strcmp(argv[1], "--serve") == 0) {
    return Serve({argv[2], std::strcmp(argv[3], "1") == 0}, std::atoi(argv[4]), argv[5]);
  }
  int rounds = 5, mbit = 0, deaths = 0;
  bool quick = false, beside = true;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) {
      quick = true;
    } else if (std::strcmp(argv[i], "--no-beside") == 0) {
      beside = false;
    } else if (std::strcmp(argv[i], "--shaped") == 0 && i + 1 < argc) {
      mbit = std::max(1, std::atoi(argv[++i]));
    } else if (std::strcmp(argv[i], "--deaths") == 0 && i + 1 < argc) {
      deaths = std::max(1, std::atoi(argv[++i]));
    } else if (std::strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) {
      rounds = std::max(1, std::atoi(argv[++i]));
    } else {
      std::cerr << "usage: dataplane_benchmark [--rounds N] [--quick] [--no-beside] | --shaped MBIT | --deaths N\n";
      return 2;
    }
  }
  if (mbit > 0) return RunShaped(mbit, rounds);
  if (deaths > 0) return RunDeaths(deaths);
  return Run(rounds, quick, beside);
}
