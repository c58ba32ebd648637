#include "compiler/compile_service.h"

#include <limits.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/status.h"
#include "compiler/cache_entry.h"
#include "compiler/child_process.h"
#include "compiler/client_program.h"
#include "compiler/disk_cache_thread.h"
#include "compiler/envelope.h"
#include "compiler/options.h"
#include "compiler/program_cache.h"

namespace landbridge {
namespace {

using Callback = absl::AnyInvocable<void(CompileResult)>;

std::string BinaryBesideOurs() {
  char path[PATH_MAX];
  ssize_t n = ::readlink("/proc/self/exe", path, sizeof(path));
  if (n <= 0) return "landbridge-compiler";
  std::string own(path, static_cast<size_t>(n));
  return own.substr(0, own.rfind('/') + 1) + "landbridge-compiler";
}

// Whole seconds where they are whole.
std::string Seconds(DurationNs duration) {
  return absl::StrCat(static_cast<double>(duration) / static_cast<double>(kSecond), " s");
}

}  // namespace

// Thread-safety: public members from any thread. One thread per child; a job is one distinct program, and all who ask
// for it wait on the same job.
class CompileService::Impl {
 public:
  explicit Impl(CompileServiceOptions options)
      : options_(std::move(options)), cache_(options_.cache_bytes_max, options_.negative_cache_time) {}

  ~Impl() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    if (stop_fd_ >= 0) {
      uint64_t one = 1;
      [[maybe_unused]] ssize_t n = ::write(stop_fd_, &one, sizeof(one));
    }
    wakes_.notify_all();
    side_wakes_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    if (side_thread_.joinable()) side_thread_.join();
    for (auto& task : side_tasks_) task(Closed());
    disk_.reset();  // ends lookups, and writes what waits
    // The threads are gone: what is left was never started.
    for (auto& job : queue_) Finish(*job, Closed());
    if (stop_fd_ >= 0) ::close(stop_fd_);
  }

  absl::Status Start() {
    if (options_.compiler_binary.empty()) options_.compiler_binary = BinaryBesideOurs();
    if (::access(options_.compiler_binary.c_str(), X_OK) != 0) {
      return absl::FailedPreconditionError(absl::StrCat("the compiler binary ", options_.compiler_binary,
                                                        " is missing or not executable; build landbridge-compiler"));
    }
    if (options_.child_count < 1 || options_.child_count > limits::kCompileChildrenMax) {
      return absl::FailedPreconditionError(absl::StrCat("the number of compiler processes must lie between 1 and ",
                                                        limits::kCompileChildrenMax, ", not ", options_.child_count));
    }
    LB_ASSIGN_OR_RETURN(plugin_sha256_, Sha256FileHex(options_.plugin_path));
    LB_ASSIGN_OR_RETURN(compiler_sha256_, Sha256FileHex(options_.compiler_binary));
    if (!options_.disk_cache_folder.empty()) {
      disk_ = std::make_unique<DiskCacheThread>(options_.disk_cache_folder, options_.disk_cache_bytes_max);
    }
    seal_ = std::make_unique<ClientProgramSeal>(SealSecret(), Environment());
    stop_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (stop_fd_ < 0) return absl::FailedPreconditionError("no event descriptor for the compile service");
    for (int i = 0; i < options_.child_count; ++i) threads_.emplace_back([this, i] { Run(i); });
    side_thread_ = std::thread([this] { RunSideTasks(); });
    return absl::OkStatus();
  }

  void Compile(CompileRequest request, bool only_shardings, Callback callback) {
    absl::StatusOr<NormalizedOptions> options = NormalizeOptions(request.compile_options);
    absl::Status refused = options.status();
    if (refused.ok() && !request.test_fault.empty() && !options_.enable_test_faults) {
      refused = absl::InvalidArgumentError("test faults are not enabled in this compile service");
    }
    if (refused.ok() && request.program.size() > limits::kProgramBytesMax) {
      refused =
          absl::InvalidArgumentError(absl::StrCat("a program of ", request.program.size(),
                                                  " bytes is too large to compile; pass large constants as arguments"));
    }
    if (!refused.ok()) {
      callback(refused);
      return;
    }
    auto job = std::make_unique<Job>();
    job->call.set_compile_options(SerializeDeterministic(options->proto));
    job->call.set_test_fault(request.test_fault);
    job->call.set_split(request.split && options->num_devices() > 1);
    job->call.set_only_shardings(only_shardings);
    const size_t bytes = request.program.size();
    SubmitWith(bytes, std::move(job), std::move(callback), [this, program = std::move(request.program)](Job& full) {
      full.call.set_program(std::string(program));
      full.inputs = Inputs(full.call);
      full.key = absl::StrCat(full.call.only_shardings() ? "shardings of " : "", HashOf(full.inputs));
    });
  }

  void FetchOptimisedProgram(std::shared_ptr<const std::string> envelope, const std::string& sha256, OptimisedForm form,
                             Callback callback) {
    auto job = std::make_unique<Job>();
    job->key = absl::StrCat(form == OptimisedForm::kText ? "text of program " : "optimised program ", sha256);
    job->call.set_as_text(form == OptimisedForm::kText);
    const size_t bytes = envelope->size();
    SubmitWith(bytes, std::move(job), std::move(callback),
               [envelope = std::move(envelope)](Job& full) { full.call.set_envelope(*envelope); });
  }

  void SealForClient(ExecutableInfo info, std::shared_ptr<const std::string> envelope, std::vector<int32_t> device_ids,
                     absl::AnyInvocable<void(absl::StatusOr<std::string>)> callback) {
    AddSideTask([this, info = std::move(info), envelope = std::move(envelope), device_ids = std::move(device_ids),
                 callback = std::move(callback)](const absl::Status& status) mutable {
      callback(status.ok() ? seal_->Seal(info, *envelope, device_ids) : status);
    });
  }

  void OpenFromClient(absl::Cord sealed, absl::AnyInvocable<void(absl::StatusOr<ReturnedProgram>)> callback) {
    AddSideTask([this, sealed = std::move(sealed), callback = std::move(callback)](const absl::Status& status) mutable {
      callback(status.ok() ? seal_->Open(sealed.Flatten()) : status);
    });
  }

  const std::string& seal_name() const { return seal_->name(); }

  CompileServiceStats Stats() const {
    std::lock_guard<std::mutex> lock(mutex_);
    CompileServiceStats stats = stats_;
    stats.cache_bytes = cache_.bytes();
    stats.queued = queue_.size() + looked_up_;
    if (disk_ != nullptr) stats.disk = disk_->Stats();
    return stats;
  }

  const std::string& plugin_sha256() const { return plugin_sha256_; }

 private:
  struct Job {
    CompileKey inputs;
    std::string key;  // hash of `inputs`
    CompileCall call;
    std::vector<Callback> callbacks;  // guarded by mutex_ while the job is in jobs_

    // Others are questions, and their answers are not kept.
    bool IsCompile() const { return call.envelope().empty() && !call.only_shardings(); }
  };

  // Submits the job once `complete` has put into it what takes time by the byte: for a small program here, else on the
  // side thread.
  template <typename F>
  void SubmitWith(size_t bytes, std::unique_ptr<Job> job, Callback callback, F complete) {
    if (bytes <= limits::kInlineBytesMax) {
      complete(*job);
      return Submit(std::move(job), std::move(callback));
    }
    AddSideTask([this, job = std::move(job), callback = std::move(callback),
                 complete = std::optional(std::move(complete))](const absl::Status& status) mutable {
      if (!status.ok()) return callback(status);
      (*complete)(*job);
      complete.reset();  // and the bytes that it copied
      Submit(std::move(job), std::move(callback));
    });
  }

  // Answers from the cache, joins a job under way, or queues.
  void Submit(std::unique_ptr<Job> job, Callback callback) {
    absl::Status refused;
    job->callbacks.push_back(std::move(callback));
    std::shared_ptr<const CompiledProgram> hit;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) {
        refused = Closed();
      } else if (hit = cache_.Find(job->key); hit != nullptr) {
        ++stats_.cache_hits;
      } else if (auto it = jobs_.find(job->key); it != jobs_.end()) {
        ++stats_.cache_hits;
        it->second->callbacks.push_back(std::move(job->callbacks[0]));
        return;
      } else if (refused = cache_.FindFailure(job->key, MonotonicNow()); !refused.ok()) {
        ++stats_.cache_hits;
      } else if (const size_t waiting = queue_.size() + looked_up_; waiting >= limits::kCompileQueueMax) {
        refused = absl::AbortedError(absl::StrCat(waiting, " compiles wait already; try again later"));
      } else {
        jobs_[job->key] = job.get();
        Begin(std::move(job));
        return;
      }
    }
    if (hit != nullptr) {
      job->callbacks[0](std::move(hit));
    } else {
      job->callbacks[0](refused);
    }
  }

  static absl::Status Closed() { return absl::FailedPreconditionError("the compile service has been shut down"); }

  CompileKey Inputs(const CompileCall& call) const {
    CompileKey key = Environment();
    key.set_program_sha256(Sha256Raw(call.program()));
    key.set_compile_options(call.compile_options());
    key.set_split(call.split());
    key.set_test_fault(call.test_fault());
    return key;
  }

  // What programs depend on besides their text and options.
  CompileKey Environment() const {
    CompileKey key;
    key.set_plugin_sha256(plugin_sha256_);
    key.set_compiler_sha256(compiler_sha256_);
    const HostIdentity host = HostIdentity::Current(plugin_sha256_, "cpu");
    key.set_cpu_model(host.cpu_model);
    key.set_cpu_features(host.cpu_features);
    for (const std::string& entry : options_.environment) key.add_environment(entry);
    for (const std::string& flag : options_.plugin_flags) key.add_environment(flag);
    const char* flags = std::getenv("XLA_FLAGS");
    key.set_xla_flags(flags == nullptr ? "" : flags);
    key.set_envelope_format_version(kEnvelopeFormatVersion);
    return key;
  }

  // Of all who use the cache on disk; without one, of this process.
  std::string SealSecret() const {
    if (options_.disk_cache_folder.empty()) return RandomSealSecret();
    absl::StatusOr<std::string> shared = SharedSealSecret(options_.disk_cache_folder);
    if (shared.ok()) return *std::move(shared);
    LogWarning("compiled programs that clients keep can be loaded until this process ends only: ",
               shared.status().message());
    return RandomSealSecret();
  }

  // What is done with all bytes of a program, so not on the callers' threads. The status: closed, or OK.
  using SideTask = absl::AnyInvocable<void(const absl::Status&)>;

  void AddSideTask(SideTask task) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!stopping_) {
        side_tasks_.push_back(std::move(task));
        side_wakes_.notify_one();
        return;
      }
    }
    task(Closed());
  }

  void RunSideTasks() {
    for (;;) {
      SideTask task;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        side_wakes_.wait(lock, [this] { return stopping_ || !side_tasks_.empty(); });
        if (stopping_) return;
        task = std::move(side_tasks_.front());
        side_tasks_.pop_front();
      }
      task(absl::OkStatus());
    }
  }

  // With mutex_ held: looks on disk, or has it compiled.
  void Begin(std::unique_ptr<Job> job) {
    if (disk_ == nullptr || !job->call.test_fault().empty() || !job->IsCompile()) {
      queue_.push_back(std::move(job));
      wakes_.notify_one();
      return;
    }
    ++looked_up_;
    CompileKey inputs = job->inputs;
    disk_->Find(std::move(inputs), [this, job = std::move(job)](std::shared_ptr<const CompiledProgram> found) mutable {
      OnLookedUp(std::move(job), std::move(found));
    });
  }

  // On the thread of the disk.
  void OnLookedUp(std::unique_ptr<Job> job, std::shared_ptr<const CompiledProgram> found) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      --looked_up_;
      if (found == nullptr && !stopping_) {
        queue_.push_back(std::move(job));
        wakes_.notify_one();
        return;
      }
      jobs_.erase(job->key);
      if (found != nullptr) cache_.Insert(job->key, found);
    }
    if (found != nullptr) {
      Finish(*job, std::move(found));
    } else {
      Finish(*job, Closed());
    }
  }

  // Runs all callbacks of a job that nobody can join any more.
  static void Finish(Job& job, const CompileResult& result) {
    for (Callback& callback : job.callbacks) callback(result);
    job.callbacks.clear();
  }

  void Run(int index) {
    std::optional<ChildProcess> child;
    // Start it now, so that the first compile finds it warm. A failure is reported by the compile that needs it.
    if (absl::Status status = EnsureChild(index, child); !status.ok() && !absl::IsCancelled(status)) {
      LogWarning("compiler process ", index, ": ", status.message());
    }
    for (;;) {
      std::unique_ptr<Job> job;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wakes_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
        if (stopping_) return;
        job = std::move(queue_.front());
        queue_.pop_front();
        ++stats_.running;
        if (job->IsCompile()) ++stats_.compiles;
      }
      CompileResult result = CompileOne(index, child, *job);
      {
        std::lock_guard<std::mutex> lock(mutex_);
        --stats_.running;
        jobs_.erase(job->key);
        if (result.ok()) {
          if (job->IsCompile()) cache_.Insert(job->key, *result);
        } else {
          ++stats_.failures;
        }
      }
      Finish(*job, result);
      if (disk_ != nullptr && result.ok() && job->IsCompile()) disk_->Insert(std::move(job->inputs), *result);
    }
  }

  std::string LogPath(int index) const {
    return options_.log_dir.empty() ? std::string()
                                    : absl::StrCat(options_.log_dir, "/landbridge-compiler-", index, ".log");
  }

  absl::Status EnsureChild(int index, std::optional<ChildProcess>& child) {
    if (child.has_value() && child->Alive()) return absl::OkStatus();
    child.reset();
    ChildProcessOptions options;
    options.binary = options_.compiler_binary;
    options.plugin_path = options_.plugin_path;
    options.plugin_flags = options_.plugin_flags;
    options.ffi_libraries = options_.ffi_libraries;
    options.log_path = LogPath(index);
    options.memory_limit_bytes = options_.memory_limit_bytes;
    options.enable_test_faults = options_.enable_test_faults;
    options.environment = options_.environment;
    options.stop_fd = stop_fd_;
    LB_ASSIGN_OR_RETURN(ChildProcess started, ChildProcess::Start(options));
    if (started.greeting().plugin_sha256() != plugin_sha256_) {
      return absl::FailedPreconditionError(absl::StrCat("the PJRT plugin ", options_.plugin_path,
                                                        " has changed on disk since this process started; restart it"));
    }
    child = std::move(started);
    return absl::OkStatus();
  }

  CompileResult CompileOne(int index, std::optional<ChildProcess>& child, Job& job) {
    absl::StatusOr<CompileReply> reply = absl::UnavailableError("not tried");
    // Twice at most: a child that died before it began was ended by something else than this program.
    for (int attempt = 0; attempt < 2; ++attempt) {
      absl::Status ready = EnsureChild(index, child);
      if (absl::IsCancelled(ready)) return Closed();
      LB_RETURN_IF_ERROR(ready);
      bool accepted = false;
      reply = child->Call(job.call, MonotonicNow() + options_.time_limit, &accepted);
      if (reply.ok() || accepted || !absl::IsUnavailable(reply.status()) || attempt > 0) break;
      LogWarning("compiler process ", index, " ended while it was idle; starting another");
      child.reset();
    }
    if (!reply.ok()) return BuryChild(index, child, job, reply.status());
    if (reply->code() != 0) {
      return absl::Status(static_cast<absl::StatusCode>(reply->code()), reply->message());
    }
    auto program = std::make_shared<CompiledProgram>();
    program->info = std::move(*reply->mutable_info());
    program->envelope = std::move(*reply->mutable_envelope());
    program->optimised_program = std::move(*reply->mutable_optimised_program());
    program->shardings = std::move(*reply->mutable_shardings());
    program->envelope_sha256 = Sha256Raw(program->envelope);
    return std::shared_ptr<const CompiledProgram>(std::move(program));
  }

  // The child is dead, or has to be. The compile fails with what is known, and its program is not tried again soon.
  absl::Status BuryChild(int index, std::optional<ChildProcess>& child, const Job& job, const absl::Status& why) {
    const bool stopped = absl::IsCancelled(why);
    const bool late = absl::IsAborted(why);
    bool out_of_memory = false;
    std::string end = child->Bury(/*at_once=*/stopped || late, &out_of_memory);
    child.reset();
    if (stopped) return Closed();
    const std::string log = LogPath(index);
    const std::string where = log.empty() ? "" : absl::StrCat("; its log is ", log);
    absl::Status status;
    if (late) {
      status = absl::AbortedError(absl::StrCat("compiling the program took longer than the limit of ",
                                               Seconds(options_.time_limit), " and was stopped", where));
    } else if (absl::IsInvalidArgument(why)) {
      status = absl::InvalidArgumentError(absl::StrCat("compiling the program failed: ", why.message(), where));
    } else if (out_of_memory) {
      status = absl::ResourceExhaustedError(absl::StrCat(
          "compiling the program took too much memory: the compiler process ", end,
          options_.memory_limit_bytes > 0 ? absl::StrCat("; its limit is ", options_.memory_limit_bytes, " bytes") : "",
          where));
    } else {
      status = absl::InvalidArgumentError(
          absl::StrCat("compiling the program ended the compiler process: it ", FilterForeignText(end), where));
    }
    LogWarning("compiler process ", index, ": ", status.message());
    std::lock_guard<std::mutex> lock(mutex_);
    ++stats_.child_deaths;
    cache_.InsertFailure(job.key, status, MonotonicNow());
    return status;
  }

  CompileServiceOptions options_;
  std::string plugin_sha256_, compiler_sha256_;
  int stop_fd_ = -1;
  std::unique_ptr<DiskCacheThread> disk_;  // null: in memory only
  std::vector<std::thread> threads_;
  std::unique_ptr<ClientProgramSeal> seal_;
  std::thread side_thread_;

  mutable std::mutex mutex_;
  std::condition_variable wakes_;
  // Guarded by mutex_:
  bool stopping_ = false;
  std::deque<std::unique_ptr<Job>> queue_;
  size_t looked_up_ = 0;                         // with disk_ now
  absl::flat_hash_map<std::string, Job*> jobs_;  // looked up, queued and running
  ProgramCache cache_;
  CompileServiceStats stats_;
  std::condition_variable side_wakes_;
  std::deque<SideTask> side_tasks_;  // at most one for each request of a session that has no answer
};

CompileService::CompileService(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CompileService::~CompileService() = default;

absl::StatusOr<std::unique_ptr<CompileService>> CompileService::Start(CompileServiceOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  LB_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<CompileService>(new CompileService(std::move(impl)));
}

void CompileService::Compile(CompileRequest request, absl::AnyInvocable<void(CompileResult)> callback) {
  impl_->Compile(std::move(request), /*only_shardings=*/false, std::move(callback));
}

void CompileService::AskShardings(CompileRequest request,
                                  absl::AnyInvocable<void(absl::StatusOr<std::string>)> callback) {
  impl_->Compile(std::move(request), /*only_shardings=*/true,
                 [callback = std::move(callback)](CompileResult result) mutable {
                   if (!result.ok()) return callback(result.status());
                   callback((*result)->shardings);
                 });
}

void CompileService::FetchOptimisedProgram(std::shared_ptr<const std::string> envelope, std::string sha256,
                                           OptimisedForm form,
                                           absl::AnyInvocable<void(absl::StatusOr<std::string>)> callback) {
  impl_->FetchOptimisedProgram(std::move(envelope), sha256, form,
                               [callback = std::move(callback)](CompileResult result) mutable {
                                 if (!result.ok()) return callback(result.status());
                                 callback((*result)->optimised_program);
                               });
}

void CompileService::SealForClient(ExecutableInfo info, std::shared_ptr<const std::string> envelope,
                                   std::vector<int32_t> device_ids,
                                   absl::AnyInvocable<void(absl::StatusOr<std::string>)> callback) {
  impl_->SealForClient(std::move(info), std::move(envelope), std::move(device_ids), std::move(callback));
}

void CompileService::OpenFromClient(absl::Cord sealed,
                                    absl::AnyInvocable<void(absl::StatusOr<ReturnedProgram>)> callback) {
  impl_->OpenFromClient(std::move(sealed), std::move(callback));
}

const std::string& CompileService::seal_name() const { return impl_->seal_name(); }

CompileServiceStats CompileService::Stats() const { return impl_->Stats(); }
const std::string& CompileService::plugin_sha256() const { return impl_->plugin_sha256(); }

}  // namespace landbridge
