// What gRPC alone costs: a server that answers the front door's messages without doing anything, and a client that
// sends what a stock client sends for one call of a chained jit (DestructArray, Execute).
//
//   grpc_echo [--rates 0,5000] [--calls 20000]
//
// One JSON line per server form and rate (calls/s; 0: as fast as it goes), and one per form for the round trip. Forms:
// "sync" is gRPC's blocking API, "queue" one completion queue with one thread, as the front door has it. CPU time is
// that of each whole process. Waking up is most of the price, so it depends on the rate: compare at equal rates.
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "proto/ifrt_proxy/grpc_ifrt_service.grpc.pb.h"

extern char** environ;

namespace landbridge {
namespace {

namespace proxy = xla::ifrt::proxy;
using Request = proxy::IfrtRequest;
using Response = proxy::IfrtResponse;
using Clock = std::chrono::steady_clock;

Response AnswerTo(const Request& request) {
  Response response;
  response.mutable_response_metadata()->set_op_id(request.request_metadata().op_id());
  if (request.has_destruct_array_request()) {
    response.mutable_destruct_array_response();
  } else {
    response.mutable_response_metadata()->set_seq_num(static_cast<int64_t>(request.request_metadata().op_id()));
    response.mutable_response_metadata()->add_destroyed_user_context_ids(request.request_metadata().user_context_id());
    response.mutable_loaded_executable_execute_response();
  }
  return response;
}

// ---------------------------------------------------------------- servers

class SyncService final : public proxy::GrpcIfrtService::Service {
  grpc::Status IfrtSession(grpc::ServerContext*, grpc::ServerReaderWriter<Response, Request>* stream) override {
    Request request;
    while (stream->Read(&request) && stream->Write(AnswerTo(request))) {
    }
    return grpc::Status::OK;
  }
};

using QueueService = proxy::GrpcIfrtService::WithAsyncMethod_IfrtSession<proxy::GrpcIfrtService::Service>;

// Serves one session on this thread.
void ServeQueue(QueueService* service, grpc::ServerCompletionQueue* queue) {
  enum Tag : intptr_t { kBegun = 1, kRead, kWritten };
  auto tag_of = [](Tag tag) { return reinterpret_cast<void*>(tag); };
  grpc::ServerContext context;
  grpc::ServerAsyncReaderWriter<Response, Request> stream(&context);
  service->RequestIfrtSession(&context, &stream, queue, queue, tag_of(kBegun));
  Request request;
  std::deque<Response> answers;
  void* tag = nullptr;
  bool ok = false;
  while (queue->Next(&tag, &ok) && ok) {
    switch (static_cast<Tag>(reinterpret_cast<intptr_t>(tag))) {
      case kBegun: stream.Read(&request, tag_of(kRead)); break;
      case kRead:
        answers.push_back(AnswerTo(request));
        if (answers.size() == 1) stream.Write(answers.front(), tag_of(kWritten));
        stream.Read(&request, tag_of(kRead));
        break;
      case kWritten:
        answers.pop_front();
        if (!answers.empty()) stream.Write(answers.front(), tag_of(kWritten));
        break;
    }
  }
  std::_Exit(0);  // the client has gone
}

int Serve(const std::string& form) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
  SyncService sync;
  QueueService queued;
  std::unique_ptr<grpc::ServerCompletionQueue> queue;
  if (form == "sync") {
    builder.RegisterService(&sync);
  } else {
    queue = builder.AddCompletionQueue();
    builder.RegisterService(&queued);
  }
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  std::cout << port << std::endl;
  if (queue != nullptr) ServeQueue(&queued, queue.get());
  server->Wait();
  return 0;
}

// ---------------------------------------------------------------- client

double Micros(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

class Server {
 public:
  explicit Server(const std::string& form) {
    std::array<int, 2> out;
    if (pipe(out.data()) != 0) std::exit(1);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    posix_spawn_file_actions_addclose(&actions, out[0]);
    std::string self = "/proc/self/exe", flag = "--serve", name = form;
    std::array<char*, 4> argv = {self.data(), flag.data(), name.data(), nullptr};
    if (posix_spawn(&pid_, self.c_str(), &actions, nullptr, argv.data(), environ) != 0) std::exit(1);
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    std::array<char, 16> text = {};
    if (read(out[0], text.data(), text.size() - 1) <= 0) std::exit(1);
    close(out[0]);
    port_ = std::atoi(text.data());
    clock_getcpuclockid(pid_, &clock_);
  }
  ~Server() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  int port() const { return port_; }
  double cpu_us() const { return Micros(clock_); }

 private:
  pid_t pid_ = 0;
  int port_ = 0;
  clockid_t clock_ = 0;
};

class Session {
 public:
  explicit Session(int port)
      : stub_(proxy::GrpcIfrtService::NewStub(
            grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()))),
        stream_(stub_->IfrtSession(&context_)),
        reader_([this] { Read(); }) {}
  ~Session() {
    context_.TryCancel();
    reader_.join();
  }

  // What a stock client sends for x = f(x).
  void Call() {
    Request destruct;
    destruct.mutable_request_metadata()->set_op_id(++op_);
    destruct.mutable_destruct_array_request()->add_array_handle(op_);
    stream_->Write(destruct);
    Request execute;
    execute.mutable_request_metadata()->set_op_id(++op_);
    execute.mutable_request_metadata()->set_user_context_id(op_ * 0x9e3779b97f4a7c15u);
    auto* run = execute.mutable_loaded_executable_execute_request();
    run->set_loaded_executable_handle(uint64_t{1} << 48);
    run->add_args_handles(op_);
    run->add_result_array_handle(op_ + 1);
    run->mutable_execute_options()->set_launch_id(static_cast<int32_t>(op_));
    stream_->Write(execute);
  }
  uint64_t sent() const { return op_; }
  uint64_t answered() const { return answered_.load(); }
  void AwaitAll() const {
    for (uint64_t seen = answered(); seen < op_; seen = answered()) answered_.wait(seen);
  }

 private:
  void Read() {
    Response response;
    while (stream_->Read(&response)) {
      ++answered_;
      answered_.notify_one();
    }
  }

  std::unique_ptr<proxy::GrpcIfrtService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<Request, Response>> stream_;
  uint64_t op_ = 0;
  std::atomic<uint64_t> answered_{0};
  std::thread reader_;
};

void Print(nlohmann::json line) { std::cout << line.dump() << std::endl; }

void MeasureRate(const std::string& form, double rate, int calls) {
  Server server(form);
  Session session(server.port());
  for (int i = 0; i < 500; ++i) session.Call();
  session.AwaitAll();
  const double server_before = server.cpu_us(), client_before = Micros(CLOCK_PROCESS_CPUTIME_ID);
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < calls; ++i) {
    if (rate > 0)
      std::this_thread::sleep_until(
          start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(i / rate)));
    session.Call();
  }
  session.AwaitAll();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  Print({{"floor", "grpc_echo"},
         {"form", form},
         {"rate", rate},
         {"calls_per_s", calls / seconds},
         {"server_cpu_us_per_call", (server.cpu_us() - server_before) / calls},
         {"client_cpu_us_per_call", (Micros(CLOCK_PROCESS_CPUTIME_ID) - client_before) / calls}});
}

void MeasureRoundTrip(const std::string& form, int calls) {
  Server server(form);
  Session session(server.port());
  std::vector<double> micros;
  for (int i = 0; i < calls; ++i) {
    const Clock::time_point start = Clock::now();
    session.Call();
    session.AwaitAll();
    if (i >= calls / 10) micros.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  std::sort(micros.begin(), micros.end());
  Print({{"floor", "grpc_echo_round_trip"},
         {"form", form},
         {"us_p50", micros[micros.size() / 2]},
         {"us_p99", micros[micros.size() * 99 / 100]}});
}

int Main(const std::vector<std::string>& args) {
  if (args.size() == 2 && args[0] == "--serve") return Serve(args[1]);
  std::vector<double> rates = {0, 5000};
  int calls = 20'000;
  for (size_t i = 0; i + 1 < args.size(); i += 2) {
    bool good = false;
    if (args[i] == "--rates") {
      rates.clear();
      good = true;
      for (absl::string_view text : absl::StrSplit(args[i + 1], ',')) {
        good = good && absl::SimpleAtod(text, &rates.emplace_back());
      }
    } else if (args[i] == "--calls") {
      good = absl::SimpleAtoi(args[i + 1], &calls) && calls > 0;
    }
    if (!good) {
      std::cerr << "usage: grpc_echo [--rates 0,5000] [--calls N]\n";
      return 2;
    }
  }
  for (const char* form : {"sync", "queue"}) {
    for (double rate : rates) MeasureRate(form, rate, calls);
    MeasureRoundTrip(form, calls / 4);
  }
  return 0;
}

}  // namespace
}  // namespace landbridge

int main(int argc, char** argv) { return landbridge::Main({argv + 1, argv + argc}); }
