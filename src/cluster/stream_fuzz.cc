// Control frames from a worker, and questions: what the proxy's end of a stream and the admin table do with any bytes.
#include "base/log.h"
#include "cluster/admin.h"
#include "cluster/control_frames.h"
#include "cluster/worker_stream.h"
#include "testing/fuzz.h"

namespace landbridge::fuzz {

std::vector<std::string> FuzzSeeds() {
  WorkerReport report;
  report.mutable_progress()->add_tickets(1);
  Heartbeat heartbeat;
  heartbeat.set_number(1);
  heartbeat.set_sent_ns(5);
  const std::string frame =
      JoinControlFrame(1, 2, kControlFrameReports, {report.SerializeAsString(), report.SerializeAsString()},
                       heartbeat.SerializeAsString());
  const std::string again = JoinControlFrame(2, 1, kControlFrameReports, {report.SerializeAsString()}, "");
  const std::string zero(1, '\0');
  const std::string push = "\x01\x02", resume = "\x03" + zero, take = "\x02";
  return {
      resume + push + push + take + zero + WithLength(frame) + zero + WithLength(again),
      "\x04" + WithLength(std::string(10'000, '[')),
      "\x04" + WithLength(R"({"what": "log_level", "level": "info"})") + "\x04" + WithLength(R"({"what": "version"})")};
}

void FuzzOne(absl::string_view input) {
  static const AdminTable* admin = new AdminTable();
  Choices choices(input);
  WorkerStream stream(200);
  uint64_t applied = 0;
  while (!choices.empty()) {
    switch (choices.Below(5)) {
      case 0: {
        uint64_t reports = 0;
        const absl::Status status = stream.OnFrame(
            choices.Text(), [](const Heartbeat&) {}, [&](const WorkerReport&) { ++reports; });
        // Each number once: nothing is applied that is not counted, nor out of order.
        LB_CHECK(stream.applied_reports() == applied + reports);
        LB_CHECK(status.ok() || reports == 0);
        applied = stream.applied_reports();
        break;
      }
      case 1: {
        WorkerOp op;
        op.mutable_explain()->set_request(choices.Byte());
        stream.Push(op);
        break;
      }
      case 2: stream.NextFrame(); break;
      case 3:
        stream.OnDisconnect();
        stream.Resume(choices.Id()).IgnoreError();
        break;
      default: {
        int answers = 0;
        admin->OnRequest(choices.Text(), [&](std::string) { ++answers; });
        LB_CHECK(answers == 1);
        break;
      }
    }
  }
}

}  // namespace landbridge::fuzz
