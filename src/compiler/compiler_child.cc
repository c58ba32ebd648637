#include "compiler/compiler_child.h"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/status.h"
#include "collectives/collective_handler.h"
#include "compiler/batch_division.h"
#include "compiler/dump_folder.h"
#include "compiler/envelope.h"
#include "compiler/errors.h"
#include "compiler/frame_io.h"
#include "compiler/load.h"
#include "compiler/metadata.h"
#include "compiler/options.h"
#include "compiler/program_text.h"
#include "custom_calls/compiler_targets.h"
#include "custom_calls/custom_call_limits.h"
#include "hlo/inspected_shardings.h"
#include "hlo/module_facts.h"
#include "hlo/rewrite_collectives.h"
#include "nlohmann/json.hpp"
#include "pjrt/client.h"
#include "pjrt/host_calls.h"
#include "pjrt/plugin.h"
#include "pjrt/virtual_compute.h"
#include "proto/landbridge/compiler.pb.h"

namespace landbridge {
namespace {

constexpr uint32_t kProtocolVersion = 1;

constexpr char kWarmUpProgram[] =
    "module @warm_up { func.func public @main(%x: tensor<f32>) -> tensor<f32> { "
    "%y = stablehlo.add %x, %x : tensor<f32> return %y : tensor<f32> } }";

void ExitOutOfMemory() {
  constexpr char kText[] = "compiler process: out of memory\n";
  [[maybe_unused]] ssize_t n = ::write(2, kText, sizeof(kText) - 1);
  ::_exit(kCompilerExitOutOfMemory);
}

[[noreturn]] void TestFault(const std::string& fault) {
  if (fault == "loop") {
    for (std::atomic<uint64_t> spin{0};;) spin.fetch_add(1, std::memory_order_relaxed);
  }
  if (fault == "allocate") {
    for (;;) {
      constexpr size_t kBytes = size_t{16} << 20;
      char* memory = new char[kBytes];  // leaked; ends in the new-handler
      std::memset(memory, 1, kBytes);
    }
  }
  std::abort();
}

// Thread-safety: none.
class Child {
 public:
  explicit Child(const CompilerChildOptions& options) : options_(options) {}

  absl::Status Start() {
    // Threads of the plugin: its default asks the machine's core count, not this container's.
    ::setenv("PJRT_NPROC", absl::StrCat(std::max(2u, std::thread::hardware_concurrency())).c_str(), 0);
    LB_ASSIGN_OR_RETURN(plugin_, pjrt::Plugin::Load(options_.plugin_path));
    devices_ = std::make_unique<CompileDevices>(plugin_, options_.target);
    LB_RETURN_IF_ERROR(devices_->Start());
    if (traits().host_handlers) {
      LB_ASSIGN_OR_RETURN(pjrt::Client * client, devices_->ClientOf(1));
      LB_RETURN_IF_ERROR(pjrt::RegisterAndCheckHostCalls(*client));
      LB_RETURN_IF_ERROR(pjrt::RegisterAndCheckVirtualCompute(*client));
    }
    LB_ASSIGN_OR_RETURN(const std::vector<FfiLibrarySpec> libraries, ParseFfiLibraries(options_.ffi_libraries));
    LB_ASSIGN_OR_RETURN(targets_, CompilerTargets::Register(*plugin_, libraries));
    return absl::OkStatus();
  }

  CompilerGreeting Greeting() const {
    CompilerGreeting greeting;
    greeting.set_protocol_version(kProtocolVersion);
    greeting.set_plugin_sha256(plugin_->sha256());
    greeting.set_platform(traits().platform);
    return greeting;
  }

  // The first compile in a process takes two to three times as long; make it an idle one.
  void WarmUp() {
    CompileCall call;
    call.set_program(kWarmUpProgram);
    CompileReply reply;
    if (absl::Status status = Compile(call, reply); !status.ok()) {
      LogWarning("the warm-up compile failed: ", status.ToString());
    }
  }

  absl::Status Compile(const CompileCall& call, CompileReply& reply) {
    if (options_.enable_test_faults) {
      // End-to-end tests have no other way to say it than in the program: a custom call of that name.
      for (const char* fault : {"abort", "loop", "allocate"}) {
        if (absl::StrContains(call.program(), absl::StrCat("landbridge_test_fault_", fault))) TestFault(fault);
      }
    }
    if (!call.test_fault().empty()) {
      if (!options_.enable_test_faults) {
        return absl::InvalidArgumentError("test faults are not enabled in this compiler process");
      }
      TestFault(call.test_fault());
    }
    if (!call.envelope().empty()) return ReadOptimised(call, reply);
    if (call.only_shardings()) return ReadShardings(call, reply);
    LB_RETURN_IF_ERROR(CheckCallsOfTheClient(call.program()));
    if (!traits().host_handlers) LB_RETURN_IF_ERROR(CheckHostHandlers(call.program(), traits().platform));
    LB_ASSIGN_OR_RETURN(NormalizedOptions options, NormalizeOptions(call.compile_options()));
    over_processes_ = call.split() && options.num_devices() > 1;
    const bool native = over_processes_ && !traits().host_handlers;
    const bool split = over_processes_ && !native;
    LB_ASSIGN_OR_RETURN(std::unique_ptr<pjrt::Executable> executable, CompileWhole(call.program(), options, split));
    LB_ASSIGN_OR_RETURN(ExecutableInfo info, DescribeExecutable(*executable, options));
    ExecutableBody body;
    if (split) {
      LB_RETURN_IF_ERROR(Split(executable, options, info, *body.mutable_collectives()));
    }
    if (native) {
      info.set_split(true);
      info.set_native(true);
    }
    auto serialized = executable->Serialize();
    if (!serialized.ok())
      return FromPluginError(serialized.status(), absl::StrCat("serializing program ", info.name()));
    body.set_serialized(*std::move(serialized));
    body.set_compile_options(SerializeDeterministic(options.proto));
    *body.mutable_info() = info;
    if (body.ByteSizeLong() > limits::kProgramBytesMax) {
      return absl::ResourceExhaustedError(absl::StrCat("program ", info.name(), " compiled to ", body.ByteSizeLong(),
                                                       " bytes; at most ", limits::kProgramBytesMax,
                                                       " can be sent to a worker; pass large constants as arguments"));
    }
    reply.set_envelope(SealEnvelope(std::move(body), HostIdentity::Current(plugin_->sha256(), traits().platform)));
    *reply.mutable_info() = std::move(info);
    return absl::OkStatus();
  }

 private:
  // Loading tells what was compiled, and is cheap.
  absl::Status ReadOptimised(const CompileCall& call, CompileReply& reply) {
    LB_ASSIGN_OR_RETURN(ExecutableBody body,
                        OpenEnvelope(call.envelope(), HostIdentity::Current(plugin_->sha256(), traits().platform)));
    const ExecutableInfo& info = body.info();
    LB_ASSIGN_OR_RETURN(pjrt::Client * client, devices_->ClientOf(info.num_devices()));
    if (info.native()) {
      return absl::UnimplementedError(
          "the text of a program over several workers is not known where they run it natively");
    }
    std::vector<int> ordinals;
    for (int d = 0; !info.portable() && !info.split() && d < info.num_devices(); ++d) ordinals.push_back(d);
    LB_ASSIGN_OR_RETURN(LoadedProgram program, LoadEnvelope(*client, call.envelope(), ordinals));
    LB_ASSIGN_OR_RETURN(const std::string optimised, program.executable->OptimizedProgram());
    LB_ASSIGN_OR_RETURN(const xla::HloModuleProto module, hlo::ParseModule(optimised));
    std::string bytes = module.SerializeAsString();
    if (call.as_text()) {
      LB_ASSIGN_OR_RETURN(bytes, ProgramText(bytes, options_.plugin_path));
    }
    reply.set_optimised_program(std::move(bytes));
    return absl::OkStatus();
  }

  // What the partitioner thinks of the program, and whether there is code for its calls, does not matter.
  absl::Status ReadShardings(const CompileCall& call, CompileReply& reply) {
    LB_ASSIGN_OR_RETURN(NormalizedOptions options, NormalizeOptions(call.compile_options()));
    if (options.num_partitions < 2 || options.num_replicas > 1) {
      return absl::InvalidArgumentError("shardings of values: the program is not divided over devices");
    }
    if (!traits().host_handlers) {
      return absl::UnimplementedError(absl::StrCat(
          "inspect_array_sharding and custom_partitioning are not there on platform ", traits().platform, " yet"));
    }
    over_processes_ = false;
    LB_ASSIGN_OR_RETURN(const DumpFolder folder, DumpFolder::Create());
    const absl::Status compiled = CompileAsItIs(call.program(), options, /*quick=*/true, &folder).status();
    const absl::StatusOr<xla::HloModuleProto> module = ReadPropagated(folder);
    if (!module.ok()) return compiled.ok() ? module.status() : compiled;
    nlohmann::json list = nlohmann::json::array();
    for (const hlo::InspectedSharding& one : hlo::InspectedShardings(*module)) {
      list.push_back({one.name, absl::Base64Escape(one.sharding.SerializeAsString())});
    }
    reply.set_shardings(
        nlohmann::json{{"shardings", std::move(list)}}.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
    return absl::OkStatus();
  }

  // For all its devices. `quick`: only its optimised HLO is wanted, which is the same; its code need not be good.
  absl::StatusOr<std::unique_ptr<pjrt::Executable>> CompileWhole(const std::string& program, NormalizedOptions& options,
                                                                 bool quick) {
    if (traits().host_handlers && MayDivideBatches(program, options)) {
      auto folder = DumpFolder::Create();
      if (folder.ok()) return CompileInParts(program, options, quick, *folder);
      LogWarning("custom calls are not divided along their batch: ", folder.status().message());
    }
    return CompileAsItIs(program, options, quick, nullptr);
  }

  // With custom calls divided along their batch, if there are such.
  absl::StatusOr<std::unique_ptr<pjrt::Executable>> CompileInParts(const std::string& program,
                                                                   NormalizedOptions& options, bool quick,
                                                                   const DumpFolder& folder) {
    // Refused, after the module was written, if the partitioner needs to be told where a call is made that every device is to
    // make.
    auto whole = CompileAsItIs(program, options, /*quick=*/true, &folder);
    auto divided = DivideBatches(folder, options);
    if (!whole.ok() && !(divided.ok() && divided->has_value())) return whole.status();
    if (!divided.ok()) {
      LogWarning("custom calls are not divided along their batch: ", divided.status().message());
    } else if (divided->has_value()) {
      if (whole.ok()) whole->reset();
      xla::CompileOptionsProto proto = (*divided)->options;
      if (quick) MakeQuick(proto);
      auto parts = CompileAs((*divided)->module, "hlo", proto, options);
      if (parts.ok()) {
        options.proto = std::move((*divided)->options);
        return parts;
      }
      LogWarning("a program with custom calls divided along their batch was refused: ", parts.status().message());
    }
    if (quick && (!whole.ok() || *whole != nullptr)) return whole;
    return CompileAsItIs(program, options, quick, nullptr);
  }

  // `folder`, if any, gets the module of the moment before it is divided.
  absl::StatusOr<std::unique_ptr<pjrt::Executable>> CompileAsItIs(const std::string& program,
                                                                  NormalizedOptions& options, bool quick,
                                                                  const DumpFolder* folder) {
    auto compile = [&] {
      xla::CompileOptionsProto proto = options.proto;
      if (quick) MakeQuick(proto);
      if (folder != nullptr) WriteModulesTo(*folder, proto);
      return CompileAs(program, "mlir", proto, options);
    };
    auto executable = CompileWithOffers(compile);
    auto* build = options.proto.mutable_executable_build_options();
    if (!executable.ok() && !build->use_shardy_partitioner() && absl::StrContains(program, "sdy")) {
      // Modules with Shardy's operations need its partitioner, whatever the options say.
      build->set_use_shardy_partitioner(true);
      auto again = CompileWithOffers(compile);
      if (again.ok()) executable = std::move(again);
    }
    if (!executable.ok()) return FromCompileError(executable.status(), "compiling the program");
    return executable;
  }

  // Puts a program of one device in the place of one for many.
  absl::Status Split(std::unique_ptr<pjrt::Executable>& executable, NormalizedOptions& options, ExecutableInfo& info,
                     CollectiveTable& table) {
    LB_ASSIGN_OR_RETURN(pjrt::Client * client, devices_->ClientOf(1));
    LB_RETURN_IF_ERROR(RegisterCollectives(*client));
    LB_ASSIGN_OR_RETURN(const std::string optimised, executable->OptimizedProgram());
    LB_ASSIGN_OR_RETURN(hlo::SplitModule split,
                        hlo::RewriteCollectives(optimised, {options.num_replicas, options.num_partitions}));
    table = std::move(split.table);
    MakeSingleDevice(options.proto, split.shapes);
    auto single = devices_->Compile(split.program, "hlo", options.proto, 1, /*over_processes=*/false);
    if (!single.ok()) {
      return FromCompileError(single.status(), absl::StrCat("compiling program ", info.name(), " for several workers"));
    }
    executable = *std::move(single);
    info.set_split(true);
    return DescribeMemoryAndCode(*executable, info);
  }

  absl::StatusOr<std::unique_ptr<pjrt::Executable>> CompileAs(absl::string_view program, absl::string_view format,
                                                              const xla::CompileOptionsProto& proto,
                                                              const NormalizedOptions& options) {
    return devices_->Compile(program, format, proto, options.num_devices(), over_processes_);
  }

  const pjrt::Traits& traits() const { return plugin_->traits(); }

  // Compiles again while libraries of users have what is missing.
  template <typename Compile>
  absl::StatusOr<std::unique_ptr<pjrt::Executable>> CompileWithOffers(const Compile& compile) {
    auto executable = compile();
    for (int offers = 0; !executable.ok() && offers < limits::kOfferedTargetsMax; ++offers) {
      const std::string target = MissingHandlerOf(executable.status());
      if (target.empty()) break;
      LB_ASSIGN_OR_RETURN(const bool offered, targets_.Offer(*plugin_, target));
      if (!offered) break;
      executable = compile();
    }
    return executable;
  }

  const CompilerChildOptions options_;
  CompilerTargets targets_;
  std::shared_ptr<pjrt::Plugin> plugin_;
  std::unique_ptr<CompileDevices> devices_;
  bool over_processes_ = false;  // of the program that is compiled now
};

}  // namespace

int RunCompilerChild(int fd, const CompilerChildOptions& options) {
  std::set_new_handler(&ExitOutOfMemory);
  if (options.memory_limit_bytes > 0) {
    rlimit limit{static_cast<rlim_t>(options.memory_limit_bytes), static_cast<rlim_t>(options.memory_limit_bytes)};
    ::setrlimit(RLIMIT_DATA, &limit);
  }
  rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);  // a program that crashes the compiler would leave one each time

  FrameChannel channel(fd, fd, -1);
  Child child(options);
  if (absl::Status status = child.Start(); !status.ok()) {
    LogError("the compiler process cannot start: ", status.ToString());
    CompilerGreeting greeting;
    greeting.set_protocol_version(kProtocolVersion);
    greeting.set_error_code(static_cast<uint32_t>(status.code()));
    greeting.set_error_message(std::string(status.message()));
    channel.Write(greeting.SerializeAsString()).IgnoreError();
    return kCompilerExitCannotStart;
  }
  if (!channel.Write(child.Greeting().SerializeAsString()).ok()) return 0;
  child.WarmUp();
  for (;;) {
    absl::StatusOr<std::string> frame = channel.Read();
    if (!frame.ok()) return absl::IsUnavailable(frame.status()) ? 0 : kCompilerExitCannotStart;
    CompileReply reply;
    CompileCall call;
    if (!call.ParseFromString(*frame)) {
      LogError("a compile call does not parse");
      return kCompilerExitCannotStart;
    }
    frame->clear();
    // An empty frame says that the work has begun: whatever ends this process from now on is this program's doing.
    if (!channel.Write("").ok()) return 0;
    if (absl::Status status = child.Compile(call, reply); !status.ok()) {
      reply.Clear();
      reply.set_code(static_cast<uint32_t>(status.code()));
      reply.set_message(std::string(status.message()));
    }
    if (!channel.Write(reply.SerializeAsString()).ok()) return 0;
    reply.Clear();
    call.Clear();
    ::malloc_trim(0);
  }
}

}  // namespace landbridge
