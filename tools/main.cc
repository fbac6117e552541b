// The `sluice` command.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "tools/fabric_config/command.h"
#include "tools/perf/perf.h"
#include "tools/policy/command.h"
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
  sluice::policy::Options policy;
  CLI::App* policy_command =
      app.add_subcommand("policy", "service classes: checks a policy, explains what it does");
  sluice::policy::AddOptions(policy_command, &policy);
  sluice::fabric_config::CommandOptions fabric_config;
  CLI::App* fabric_config_command =
      app.add_subcommand("fabric-config", "what subnet manager, hosts and switches need for a policy");
  sluice::fabric_config::AddOptions(fabric_config_command, &fabric_config);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    std::string text = error.what();
    for (char& c : text) c = c == '\n' ? ' ' : c;
    std::string command;
    for (const CLI::App* parsed : app.get_subcommands()) command = parsed->get_name() + " ";
    fprintf(stderr, "sluice: %s; see sluice %s--help\n", text.c_str(), command.c_str());
    return 2;
  }
  if (scenario_command->parsed()) return sluice::scenario::Run(scenario);
  if (policy_command->parsed()) return sluice::policy::Run(policy);
  if (fabric_config_command->parsed()) return sluice::fabric_config::Run(fabric_config);
  return sluice::perf::Run(perf, std::vector<std::string>(argv, argv + argc));
}
