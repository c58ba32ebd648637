// Clients that serve calls of their functions and send any frames, with streams that come, break and are replaced, and workers
// that call and die: every call is answered once, with as many bytes as its program wants, and a stream has one read and one
// write open at a time and is finished in the end.
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "dataplane/in_process_data_plane.h"
#include "frontdoor/ifrt_proxy/host_call_router.h"
#include "testing/fuzz.h"

namespace landbridge::fuzz {
namespace {

constexpr uint64_t kSessions = 3, kWorkers = 2;
constexpr uint64_t kCallsMax = 64;  // with small numbers that answers can guess

class Stream final : public HostCallPipe::Stream {
 public:
  void StartRead() override {
    LB_CHECK(!reading && !finished);
    reading = true;
  }
  void StartWrite(const HostCallFrameOut& frame) override {
    LB_CHECK(!writing && !finished && frame.bytes() > 0);
    writing = true;
  }
  void Cancel() override {
    LB_CHECK(!finished);
    cancelled = true;
  }
  void Finish() override {
    LB_CHECK(!finished && !reading && !writing);
    finished = true;
  }
  bool reading = false, writing = false, cancelled = false, finished = false;
};

class World {
 public:
  World() {
    dataplane::DataPlaneOptions plane;
    plane.self = Incarnation(100);
    plane_ = fabric_.MakeDataPlane(std::move(plane));
    HostCallRouter::Options options;
    options.space = 1;
    options.reply = [this](Incarnation worker, HostCallReply reply) {
      auto wanted = open_.find({worker, reply.call()});
      LB_CHECK(wanted != open_.end());  // asked, and not answered yet
      const bool failed = reply.status().code() != 0;
      LB_CHECK(failed || reply.results_key() != 0 || static_cast<int64_t>(reply.results().size()) == wanted->second);
      open_.erase(wanted);
    };
    options.post = [](auto) { LB_CHECK(false); };  // nothing here is fetched
    router_ = std::make_unique<HostCallRouter>(std::move(options), plane_.get());
  }
  ~World() {
    router_ = nullptr;
    plane_->Shutdown();
  }

  void Call(Incarnation worker, SessionId session, std::string operands, int64_t result_bytes) {
    if (calls_ == kCallsMax) return;
    HostCall call;
    call.set_call(++calls_);
    call.set_session(session.value());
    call.set_operand_bytes(static_cast<int64_t>(operands.size()));
    call.set_operands(std::move(operands));
    call.set_result_bytes(result_bytes);
    open_[{worker, call.call()}] = result_bytes;
    router_->OnCall(worker, std::move(call));
  }

  void Attach(SessionId session) {
    auto client = std::make_shared<Client>();
    Client* raw = client.get();
    client->pipe = std::make_shared<HostCallPipe>(
        session,
        [raw](HostCallPipe::Frame frame) {
          LB_CHECK(raw->delivered == nullptr);  // one at a time
          raw->delivered = std::move(frame);
        },
        [this, session](size_t bytes) { router_->OnWritten(session, bytes); }, [raw] { raw->closed = true; });
    clients_.push_back(client);
    router_->Attach(client->pipe);
    client->pipe->Start(&client->stream);
    client->pipe->Send(ReadyFrame());
  }

  // What happens to the stream of the client: a frame, the end of a write, its end.
  void Frame(size_t i, std::string bytes) {
    if (clients_.empty()) return;
    Client& client = *clients_[i % clients_.size()];
    if (!std::exchange(client.stream.reading, false)) return;
    client.pipe->OnRead(std::make_shared<const std::string>(std::move(bytes)));
    Deliver(client);
  }
  void Written(size_t i, bool ok) {
    if (clients_.empty()) return;
    Client& client = *clients_[i % clients_.size()];
    if (std::exchange(client.stream.writing, false)) client.pipe->OnWritten(ok && !client.stream.cancelled);
    Deliver(client);
  }
  void Break(size_t i) {
    if (clients_.empty()) return;
    Client& client = *clients_[i % clients_.size()];
    if (std::exchange(client.stream.reading, false)) client.pipe->OnRead(nullptr);
    Deliver(client);
  }

  void Taken(Incarnation worker, uint64_t call) { router_->OnTaken(worker, call); }
  void Close(SessionId session) { router_->CloseSession(session); }
  void Lose(Incarnation worker) {
    router_->OnWorkerLost(worker);
    std::erase_if(open_, [worker](const auto& entry) { return entry.first.first == worker; });
  }

  void End() {
    for (uint64_t s = 1; s <= kSessions; ++s) Close(SessionId(s));
    for (size_t i = 0; i < clients_.size(); ++i) {
      clients_[i]->pipe->Close();
      Written(i, false);
      Break(i);
      LB_CHECK(clients_[i]->stream.finished && clients_[i]->closed);
    }
    LB_CHECK(open_.empty() && router_->open() == 0);
  }

 private:
  struct Client {
    Stream stream;
    std::shared_ptr<HostCallPipe> pipe;
    HostCallPipe::Frame delivered;
    bool closed = false, detached = false;
  };

  // What the loop does with what the stream's thread left.
  void Deliver(Client& client) {
    if (client.delivered != nullptr) router_->OnFrame(client.pipe, std::move(client.delivered));
    client.delivered = nullptr;
    if (client.closed && !std::exchange(client.detached, true)) router_->Detach(client.pipe);
  }

  dataplane::InProcessFabric fabric_;
  std::unique_ptr<dataplane::DataPlane> plane_;
  std::unique_ptr<HostCallRouter> router_;
  std::vector<std::shared_ptr<Client>> clients_;
  std::map<std::pair<Incarnation, uint64_t>, int64_t> open_;  // result bytes of calls without an answer
  uint64_t calls_ = 0;
};

std::string Answer(char kind, uint64_t call, absl::string_view bytes) {
  std::string frame(1, kind);
  for (int i = 0; i < 8; ++i) frame.push_back(static_cast<char>(call >> (8 * i)));
  frame.append(bytes.data(), bytes.size());
  return frame;
}

// A step: what, then what it needs, as FuzzOne reads it.
std::string Step(char what, std::string rest) { return std::string(1, what) + std::move(rest); }
std::string Text(absl::string_view text) {
  return std::string{static_cast<char>(text.size() & 0xff), static_cast<char>(text.size() >> 8)} + std::string(text);
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  const std::string attach = Step(1, std::string(1, '\0')), call = Step(0, std::string("\0\0\x04", 3) + Text("abcd"));
  const std::string written = Step(3, std::string("\0\1", 2));
  auto frame = [](const std::string& bytes) { return Step(2, std::string(1, '\0') + Text(bytes)); };
  return {attach + written + call + written + frame(Answer(1, 1, "wxyz")) + frame(Answer(1, 1, "wxyz")),
          attach + call + call + frame(Answer(2, 2, "it raised")) + frame(Answer(1, 1, "short")),
          attach + call + frame("") + attach + call + Step(4, std::string(1, '\1')),
          attach + call + Step(6, std::string(1, '\0')) + frame(Answer(1, 1, "wxyz")) + Step(5, std::string(1, '\0'))};
}

void FuzzOne(absl::string_view input) {
  Choices choices(input);
  World world;
  while (!choices.empty()) {
    auto session = [&] { return SessionId(1 + choices.Below(kSessions)); };
    auto worker = [&] { return Incarnation(1 + choices.Below(kWorkers)); };
    switch (choices.Below(8)) {
      case 0: {
        const Incarnation from = worker();
        const SessionId of = session();
        const int64_t results = static_cast<int64_t>(choices.Byte());
        world.Call(from, of, std::string(choices.Text()), results);
        break;
      }
      case 1: world.Attach(session()); break;
      case 2: {
        const size_t client = choices.Byte();
        world.Frame(client, std::string(choices.Text()));
        break;
      }
      case 3: {
        const size_t client = choices.Byte();
        world.Written(client, choices.Flag());
        break;
      }
      case 4: world.Break(choices.Byte()); break;
      case 5: world.Close(session()); break;
      case 6: world.Lose(worker()); break;
      case 7: {
        const Incarnation from = worker();
        world.Taken(from, choices.Id());
        break;
      }
    }
  }
  world.End();
}

}  // namespace landbridge::fuzz
