// The command-line tool `landbridge`.

#include <stdio.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "cli/cluster_state.h"
#include "cli/commands.h"

namespace {

using landbridge::cli::ClusterOptions;
using landbridge::cli::WorkerLoss;

void AddClusterOptions(CLI::App* app, ClusterOptions* options) {
  const std::string shape = "Shape of the cluster";
  app->add_option("--slices", options->slices, "Number of slices")->capture_default_str()->group(shape);
  app->add_option("--workers-per-slice", options->workers_per_slice, "Worker processes of each slice")
      ->capture_default_str()
      ->group(shape);
  app->add_option("--devices-per-worker", options->devices_per_worker, "Devices of each worker")
      ->capture_default_str()
      ->group(shape);
  app->add_option("--platform", options->platform, "Platform of the devices: cpu, cuda (docs/accelerators.md)")
      ->capture_default_str()
      ->group(shape);
  const std::string servers = "Servers";
  app->add_option("--pjrt_plugin,--pjrt-plugin", options->plugin,
                  "PJRT plugin of the workers (default: $LANDBRIDGE_PJRT_PLUGIN, else the Python package "
                  "lammps_jax_pjrt_cpu of the active environment, of the checkout's .venv or of python3)")
      ->group(servers);
  app->add_option(
         "--ffi_library,--ffi-library", options->ffi_library,
         "Libraries with custom-call handlers for jax.ffi. A PATH alone: each target is the symbol of its name; "
         "commas between libraries")
      ->option_text("PATH[:TARGET=SYMBOL]...")
      ->group(servers);
  app->add_option("--port", options->proxy_port, "Port that clients connect to; 0: any free one")
      ->capture_default_str()
      ->group(servers);
  app->add_option("--listen-address", options->listen_address, "Address to listen on (default: loopback only)")
      ->group(servers);
  app->add_flag("--insecure-network", options->insecure_network,
                "Allow a --listen-address beyond loopback: whoever reaches the ports can run programs")
      ->group(servers);
  app->add_option("--start-timeout", options->start_timeout_s, "Seconds until a start that hangs is given up")
      ->capture_default_str()
      ->group(servers);
  app->add_flag("--one-process", options->one_process,
                "All servers in one process, landbridge-one: for measurements and debugging")
      ->group(servers);
  app->add_flag("--simulated", options->simulated,
                "Workers without devices, all in one process: programs compile but are not run, so that thousands of "
                "devices fit on one machine")
      ->group(servers);
  const std::map<std::string, WorkerLoss> losses = {
      {"stop", WorkerLoss::kStop}, {"continue", WorkerLoss::kContinue}, {"restart", WorkerLoss::kRestart}};
  app->add_option("--on-worker-loss", options->worker_loss,
                  "When a worker ends by itself: stop the cluster, continue without it, or restart it")
      ->transform(CLI::CheckedTransformer(losses, CLI::ignore_case))
      ->option_text("stop|continue|restart")
      ->group(servers);
  // One value each time: what follows may be another option.
  auto add_flags = [&](const char* name, std::vector<std::string>* flags, const char* text) {
    app->add_option(name, *flags, text)
        ->option_text("--FLAG=VALUE ...")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->group(servers);
  };
  add_flags("--proxy-arg", &options->proxy_flags, "A flag for landbridge-proxy; may be repeated");
  add_flags("--worker-arg", &options->worker_flags, "A flag for every worker; may be repeated");
  add_flags("--rm-arg", &options->resource_manager_flags, "A flag for the resource manager; may be repeated");
}

}  // namespace

int main(int argc, char** argv) {
  // Everything behind "--" is the command of `run` and none of our business.
  std::vector<std::string> arguments, command;
  bool behind = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (!behind && argument == "--")
      behind = true;
    else
      (behind ? command : arguments).push_back(argument);
  }

  CLI::App app("Runs JAX programs on a cluster of worker processes: a local one with these commands.", "landbridge");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("landbridge ") + LANDBRIDGE_VERSION);
  app.footer("`landbridge COMMAND --help` tells the options of a command.");
  int exit_code = 0;
  std::string state_dir;
  bool json = false;
  auto add_state = [&](CLI::App* sub) {
    sub->add_option("--state", state_dir,
                    "Folder of the cluster (default: $LANDBRIDGE_STATE, else ~/.landbridge/default)");
  };
  auto state_or_default = [&] {
    return std::filesystem::absolute(state_dir.empty() ? landbridge::cli::DefaultStateDir() : state_dir).string();
  };

  landbridge::cli::RunArguments run;
  run.cluster.worker_loss = WorkerLoss::kStop;
  CLI::App* run_app = app.add_subcommand("run", "Start a cluster, run a command on it, end the cluster");
  run_app->footer(
      "\nThe command comes behind `--`:\n"
      "  landbridge run --slices 2 --devices-per-worker 4 -- python train.py\n"
      "It finds the cluster in its environment (JAX_PLATFORMS, JAX_BACKEND_TARGET). Its exit code is ours.");
  AddClusterOptions(run_app, &run.cluster);
  run_app->add_option("--state", run.state_dir,
                      "Folder for state and logs (default: a temporary one, kept when the command fails)");
  run_app->add_flag("--quiet,-q", run.quiet, "Print nothing but errors");
  run_app->callback([&] {
    if (command.empty())
      throw CLI::ValidationError("run", "give the command behind `--`: landbridge run -- python train.py");
    run.command = command;
    exit_code = landbridge::cli::Run(run);
  });

  landbridge::cli::UpArguments up;
  up.cluster.worker_loss = WorkerLoss::kRestart;
  CLI::App* up_app = app.add_subcommand("up", "Start a cluster that stays, and print what to export");
  AddClusterOptions(up_app, &up.cluster);
  add_state(up_app);
  up_app->add_flag("--json", up.json, "Print one JSON object: address, state, processes");
  up_app->callback([&] {
    up.state_dir = state_or_default();
    exit_code = landbridge::cli::Up(up);
  });

  CLI::App* down_app = app.add_subcommand("down", "End a cluster that `up` started");
  add_state(down_app);
  down_app->callback([&] { exit_code = landbridge::cli::Down(state_or_default()); });

  CLI::App* status_app = app.add_subcommand("status", "Show processes, slices, devices, sessions and what waits");
  add_state(status_app);
  status_app->add_flag("--json", json, "Print JSON");
  status_app->callback([&] { exit_code = landbridge::cli::ShowStatus(state_or_default(), json); });

  std::string why_what;
  CLI::App* why_app = app.add_subcommand("why", "Say what launches, copies and reads wait for, down to the root");
  add_state(why_app);
  why_app->add_option("what", why_what,
                      "A session (s1) or a launch (t9) of `landbridge status`; default: all that wait");
  why_app->add_flag("--json", json, "Print the controller's and the workers' queues as JSON");
  why_app->callback([&] { exit_code = landbridge::cli::ShowWhy(state_or_default(), why_what, json); });

  bool graph_json = false, graph_dot = false, graph_svg = false;
  CLI::App* graph_app =
      app.add_subcommand("graph", "Show the live dataflow graph: unfinished launches and the tensors between them");
  add_state(graph_app);
  CLI::Option* as_json = graph_app->add_flag("--json", graph_json, "Print JSON");
  CLI::Option* as_dot =
      graph_app->add_flag("--dot", graph_dot, "Print Graphviz; edges that stay on their worker are dashed");
  CLI::Option* as_svg = graph_app->add_flag("--svg", graph_svg, "Print SVG; needs graphviz's `dot`");
  as_json->excludes(as_dot)->excludes(as_svg);
  as_dot->excludes(as_svg);
  graph_app->callback([&] {
    using landbridge::cli::GraphForm;
    exit_code = landbridge::cli::ShowGraph(state_or_default(), graph_json  ? GraphForm::kJson
                                                               : graph_dot ? GraphForm::kDot
                                                               : graph_svg ? GraphForm::kSvg
                                                                           : GraphForm::kText);
  });

  CLI::App* devices_app = app.add_subcommand("devices", "List the devices that clients see");
  add_state(devices_app);
  devices_app->add_flag("--json", json, "Print JSON");
  devices_app->callback([&] { exit_code = landbridge::cli::ShowDevices(state_or_default(), json); });

  std::string restart_name;
  CLI::App* restart_app = app.add_subcommand("restart", "End a worker of a running cluster and start it again");
  add_state(restart_app);
  restart_app->add_option("worker", restart_name, "Its name in `landbridge status`")->required();
  restart_app->callback([&] { exit_code = landbridge::cli::Restart(state_or_default(), restart_name); });

  app.add_subcommand("version", "Print the version")->callback([] { printf("landbridge %s\n", LANDBRIDGE_VERSION); });

  // CLI11 takes the arguments last first.
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  if (behind && (arguments.empty() || arguments.front() != "run")) {
    fprintf(stderr, "landbridge: only `run` takes a command behind `--`\n");
    return 2;
  }
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : 2;
  }
  return exit_code;
}
