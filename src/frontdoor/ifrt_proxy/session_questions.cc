// What the protocol has no message for: asked as programs, and answered as their text.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"
#include "frontdoor/ifrt_proxy/session_core.h"
#include "frontdoor/ifrt_proxy/wire.h"

namespace landbridge {

absl::StatusOr<std::string> MemoryText(absl::StatusOr<ReadResult> result) {
  if (!result.ok()) return result.status();
  DeviceUse use;
  if (!use.ParseFromString(result->data)) return absl::InternalError("the figures of a device do not parse");
  return absl::StrCat("{\"bytes_in_use\":", use.bytes_in_use(), ",\"bytes_limit\":", use.bytes_limit(),
                      ",\"peak_bytes_in_use\":", use.bytes_peak(), "}");
}

void SessionCore::ProgramText(Op op, const Request& request) {
  absl::StatusOr<std::shared_ptr<Executable>> found =
      FindExecutable(request.loaded_executable_human_readable_program_text_request().loaded_executable_handle());
  if (!found.ok()) return AnswerText(op, found.status());
  const Executable& executable = **found;
  if (executable.answer.has_value()) return AnswerText(op, *executable.answer);
  if (executable.image == nullptr) {
    return AnswerText(op, absl::UnimplementedError(absl::StrCat("A ", executable.name, " program has no text")));
  }
  const uint64_t token = next_compile_++;
  programs_fetched_.emplace(token, std::move(op));
  // A client that can makes the text itself, and more than the text.
  host_->FetchOptimisedProgram(token, executable.image,
                               options_.reads_modules ? OptimisedForm::kModule : OptimisedForm::kText);
}

void SessionCore::Ask(const Op& op, const Question& question, std::shared_ptr<Executable> executable) {
  PendingQuestion pending{op, std::move(executable)};
  if (auto* memory = std::get_if<MemoryQuestion>(&question)) {
    const RequestId id = host_->NewRequestId();
    memory_questions_.emplace(id, std::move(pending));
    return controller_->AskMemory(options_.session, id, memory->device);
  }
  if (auto* serialize = std::get_if<SerializeQuestion>(&question)) {
    for (const auto& [handle, candidate] : executables_) {
      if (candidate->fingerprint.empty() || candidate->fingerprint != serialize->fingerprint) continue;
      const uint64_t token = next_compile_++;
      questions_.emplace(token, std::move(pending));
      return host_->SealProgram(token, candidate->image, candidate->devices);
    }
    return Fail(op, absl::InvalidArgumentError("No program of this session has such a fingerprint"));
  }
  host_calls_over_.emplace_back(last_host_calling_, std::move(pending));
  AnswerHostCallsOver();
}

void SessionCore::OnAnswer(uint64_t token, absl::StatusOr<std::string> answer) {
  auto it = questions_.find(token);
  if (it == questions_.end()) return;
  PendingQuestion question = std::move(it->second);
  questions_.erase(it);
  AnswerQuestion(std::move(question), std::move(answer));
}

void SessionCore::AnswerQuestion(PendingQuestion question, absl::StatusOr<std::string> answer) {
  if (!answer.ok()) return Fail(question.op, answer.status());
  question.executable->answer = *std::move(answer);
  AnswerCompile(question.op, std::move(question.executable));
}

void SessionCore::OnOptimisedProgram(uint64_t token, absl::StatusOr<std::string> program) {
  auto it = programs_fetched_.find(token);
  if (it == programs_fetched_.end()) return;
  const Op op = std::move(it->second);
  programs_fetched_.erase(it);
  if (!program.ok()) return AnswerText(op, program.status());
  AnswerText(op, *std::move(program));
}

// Never a failed response: the client would abort.
void SessionCore::AnswerText(const Op& op, absl::StatusOr<std::string> text) {
  auto response = NewResponse(op);
  auto* answer = response->mutable_loaded_executable_human_readable_program_text_response();
  if (text.ok() && text->size() > limits::kProgramBytesMax) {
    text = absl::ResourceExhaustedError(absl::StrCat("the text of this program has ", text->size(), " bytes; at most ",
                                                     limits::kProgramBytesMax, " can be sent"));
  }
  if (text.ok()) {
    answer->set_human_readable_program_text(*std::move(text));
  } else {
    *answer->mutable_status() = wire::ToProto(text.status());
  }
  Succeed(op, std::move(response));
}

void SessionCore::AddHostCallingLaunch(Ticket ticket) {
  host_calling_.insert(ticket.value());
  last_host_calling_ = std::max(last_host_calling_, ticket.value());
  const RequestId id = Wait([this, ticket](const absl::Status&) {
    host_calling_.erase(ticket.value());
    AnswerHostCallsOver();
  });
  controller_->WhenDone(options_.session, id, ticket);
}

void SessionCore::AnswerHostCallsOver() {
  const uint64_t oldest = host_calling_.empty() ? UINT64_MAX : *host_calling_.begin();
  while (!host_calls_over_.empty() && host_calls_over_.front().first < oldest) {
    PendingQuestion question = std::move(host_calls_over_.front().second);
    host_calls_over_.pop_front();
    AnswerQuestion(std::move(question), std::string("{}"));
  }
}

}  // namespace landbridge
