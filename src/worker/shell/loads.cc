#include "worker/shell/loads.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/status.h"
#include "compiler/envelope.h"
#include "custom_calls/handler_supply.h"
#include "worker/shell/launcher.h"

namespace landbridge {

void Loads::Start(const LoadExecutable& load) {
  const ExecutableId executable(load.executable());
  loading_[executable] = true;
  auto job = std::make_shared<Job>();
  job->devices.assign(load.devices().begin(), load.devices().end());
  job->numbers_in_group.assign(load.global_devices().begin(), load.global_devices().end());
  auto fail = [&](absl::Status status) {
    context_->Begin();
    context_->PostEnd([this, executable, status = std::move(status)] { Finish(executable, status); });
  };
  if (!load.inline_envelope().empty()) {
    auto bytes = std::make_shared<const std::string>(load.inline_envelope());
    return LoadBytes(executable, std::move(job), *bytes, bytes, load.sha256());
  }
  if (load.size() <= 0 || load.size() > limits::kEnvelopeBytesMax) {
    return fail(absl::InvalidArgumentError(
        absl::StrCat("a program of ", load.size(), " bytes; at most ", limits::kEnvelopeBytesMax, " are possible")));
  }
  // Not set to anything: touching so much memory would hold up the loop.
  const auto size = static_cast<size_t>(load.size());
  std::shared_ptr<char[]> bytes(new char[size]);
  puller_->Pull(
      context_->proxy, context_->KeyOf(DataKeyKind::kExecutable, load.executable()), 0, bytes.get(), size, bytes,
      [this, executable, job = std::move(job), bytes, size, sha256 = load.sha256()](absl::Status status) {
        if (!status.ok()) {
          return Finish(executable, AddContext(status, absl::StrCat("fetching program ", executable.ToString())));
        }
        LoadBytes(executable, job, {bytes.get(), size}, bytes, sha256);
      });
}

void Loads::LoadBytes(ExecutableId executable, std::shared_ptr<Job> job, absl::string_view bytes,
                      std::shared_ptr<const void> owner, std::string sha256) {
  context_->Begin();
  job->context = context_->shared_from_this();
  job->done = [this, executable](absl::StatusOr<std::shared_ptr<LoadedProgram>> result) {
    Finish(executable, std::move(result));
  };
  context_->pool->Run([job, executable, bytes, owner = std::move(owner), sha256 = std::move(sha256)]() mutable {
    if (Sha256Raw(bytes) != sha256) {
      return job->End(absl::InvalidArgumentError(
          absl::StrCat("program ", executable.ToString(), " arrived damaged: its checksum differs")));
    }
    absl::StatusOr<ExecutableBody> body = OpenEnvelopeFor(job->context->io->client(), bytes);
    owner.reset();
    if (!body.ok()) return job->End(body.status());
    job->body = *std::move(body);
    job->SupplyHandlers();
  });
}

void Loads::Job::SupplyHandlers() {
  const auto& called = body.info().custom_call_targets();
  std::vector<std::string> targets(called.begin(), called.end());
  if (context->handlers->Ready(targets)) return Load();
  // Loads of other programs go on meanwhile.
  context->slow->Run([self = shared_from_this(), targets = std::move(targets)] {
    absl::Status status = self->context->handlers->Supply(targets);
    if (!status.ok()) {
      return self->End(AddContext(status, absl::StrCat("loading program ", self->body.info().name())));
    }
    self->context->pool->Run([self] { self->Load(); });
  });
}

void Loads::Job::Load() {
  auto loaded = LoadBody(context->io->client(), std::move(body), devices, numbers_in_group);
  if (!loaded.ok()) return End(loaded.status());
  End(std::make_shared<LoadedProgram>(*std::move(loaded)));
}

void Loads::Job::End(absl::StatusOr<std::shared_ptr<LoadedProgram>> result) {
  context->PostEnd([done = std::move(done), result = std::move(result)]() mutable { done(std::move(result)); });
}

void Loads::Finish(ExecutableId executable, absl::StatusOr<std::shared_ptr<LoadedProgram>> loaded) {
  auto it = loading_.find(executable);
  const bool wanted = it != loading_.end() && it->second;
  if (it != loading_.end()) loading_.erase(it);
  absl::Status status = loaded.status();
  if (loaded.ok()) {
    LogDebug("loaded ", (*loaded)->info.name(), " as ", executable.ToString());
    if (wanted) {
      const bool issues_at_once = IssuesAtOnce((*loaded)->info, context_->io->client().plugin().traits());
      loaded_[executable] = {*std::move(loaded), issues_at_once};
    } else {
      Destroy(*std::move(loaded));
    }
  } else {
    LogWarning("loading ", executable.ToString(), " failed: ", status.ToString());
  }
  context_->core->OnLoadDone(executable, status, context_->Now());
}

void Loads::Unload(ExecutableId executable) {
  if (auto it = loading_.find(executable); it != loading_.end()) it->second = false;
  auto it = loaded_.find(executable);
  if (it == loaded_.end()) return;
  Destroy(std::move(it->second.program));
  loaded_.erase(it);
}

void Loads::Destroy(std::shared_ptr<LoadedProgram> program) {
  context_->pool->Run([program = std::move(program)]() mutable { program.reset(); });
}

const Loads::Loaded* Loads::Find(ExecutableId executable) const {
  auto it = loaded_.find(executable);
  return it == loaded_.end() ? nullptr : &it->second;
}

void Loads::Clear() {
  for (auto& [id, loaded] : loaded_) Destroy(std::move(loaded.program));
  loaded_.clear();
}

}  // namespace landbridge
