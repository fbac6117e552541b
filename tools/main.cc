// The `sluice` command.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "tools/perf/perf.h"
#include "tools/scenario/command.h"

int main(int argc, char** argv) {
  CLI::App app{"Sluice: NCCL over RDMA verbs"};
  app.name("sluice");
  app.set_version_flag("--version", "sluice " SLUICE_VERSION);
  app.require_subcommand(1);
  sluice::perf::Options perf;
  CLI::App* perf_command =
      app.add_subcommand("perf", "collective benchmark for any NCCL NET plugin, without GPUs");
  sluice::perf::AddOptions(perf_command, &perf);
  sluice::scenario::Options scenario;
  CLI::App* scenario_command =
      app.add_subcommand("scenario", "named experiments on the network model, in virtual time");
  sluice::scenario::AddOptions(scenario_command, &scenario);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    std::string text = error.what();
    for (char& c : text) c = c == '\n' ? ' ' : c;
    const char* command = perf_command->parsed() ? "perf " : scenario_command->parsed() ? "scenario " : "";
    fprintf(stderr, "sluice: %s; see sluice %s--help\n", text.c_str(), command);
    return 2;
  }
  if (scenario_command->parsed()) return sluice::scenario::Run(scenario);
  return sluice::perf::Run(perf, std::vector<std::string>(argv, argv + argc));
}
