#include "tools/scenario/command.h"

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "tools/scenario/report.h"
#include "tools/scenario/seed_runner.h"
#include "tools/scenario/validate.h"
#include "verbs/soft/model/topology.h"

namespace sluice::scenario {
namespace {

constexpr int kBadUsage = 2;
constexpr int64_t kMaxSeeds = 10'000;
constexpr int64_t kMaxJobs = 1024;

int Complain(const std::string& message) {
  fprintf(stderr, "sluice scenario: %s\n", message.c_str());
  return kBadUsage;
}

void PrintList() {
  for (const Scenario& scenario : AllScenarios()) {
    std::string engines = EngineName(scenario.engine);
    const Engine other = scenario.engine == Engine::kFlows ? Engine::kPlugin : Engine::kFlows;
    if (scenario.run(other) != nullptr) engines += std::string(", ") + EngineName(other);
    printf("%-12s %-14s %s\n", scenario.name, engines.c_str(), scenario.line);
  }
  printf("%-12s %-14s %s\n", "validate", "flows",
         "the model's figures beside recorded ones and closed forms, each with its band and a verdict");
  printf(
      "The first engine is the default; --engine takes the other, and so do --plugin and --host.\n"
      "flows: RC flows of the network model; SLUICE_* and NCCL_IB_* settings have no effect.\n"
      "plugin: the real plugin in virtual time; they apply.\n");
}

bool ParseSize(const std::string& text, Size* size) {
  for (const Size known : {Size::kCi, Size::kDefault, Size::kFull}) {
    if (text != SizeName(known)) continue;
    *size = known;
    return true;
  }
  return false;
}

// What was printed has arrived; otherwise says why not.
bool OutputWritten() {
  if (fflush(stdout) == 0 && ferror(stdout) == 0) return true;
  fprintf(stderr, "sluice scenario: cannot write the results to standard output: %s (errno %d)\n",
          strerror(errno), errno);
  return false;
}

// What would be ignored is refused, so that nobody believes it had an effect. Empty: all is well.
std::string Unusable(const Options& options, Engine engine, bool takes_topology) {
  if (engine == Engine::kFlows) {
    const std::string uses = options.name + " runs flows of the network model and no plugin; leave it out";
    if (!options.plugin.empty()) return "--plugin " + options.plugin + ": no effect here: " + uses;
    if (!options.host.empty()) return "--host " + options.host + ": no effect here: " + uses;
  }
  const std::pair<const char*, const std::vector<std::string>*> events[] = {
      {"--fault ", &options.faults}, {"--background ", &options.background}};
  for (const auto& [option, lines] : events) {
    if (takes_topology || lines->empty()) continue;
    return option + lines->front() + ": no effect here: " + options.name +
           " is defined for its own network; leave it out";
  }
  if (!takes_topology && !options.topology.empty()) {
    return "--topology " + options.topology + ": no effect here: " + options.name +
           " is defined for its own network; leave it out";
  }
  return "";
}

// --engine; without it the one that other options need; else the scenario's own.
bool ChooseEngine(const Options& options, const Scenario& scenario, Engine* engine) {
  *engine = scenario.engine;
  if (options.engine.empty()) {
    const bool wants_plugin = !options.plugin.empty() || !options.host.empty();
    if (wants_plugin && scenario.run_plugin != nullptr) *engine = Engine::kPlugin;
    return true;
  }
  for (const Engine known : {Engine::kFlows, Engine::kPlugin}) {
    if (options.engine == EngineName(known)) *engine = known;
  }
  return options.engine == EngineName(*engine) && scenario.run(*engine) != nullptr;
}

// Puts what was typed in the place of the defaults, if it is in range.
Status TakeNumbers(Options* options) {
  const auto take = [](const char* option, const std::optional<int64_t>& given, int64_t high, uint32_t* out) {
    if (!given.has_value()) return Status();
    if (*given < 1 || *given > high) {
      return InvalidArgument(std::string(option) + " " + std::to_string(*given) +
                             ": out of range; use 1 to " + std::to_string(high));
    }
    *out = static_cast<uint32_t>(*given);
    return Status();
  };
  SLUICE_RETURN_IF_ERROR(take("--seeds", options->given_seeds, kMaxSeeds, &options->seeds));
  SLUICE_RETURN_IF_ERROR(take("--jobs", options->given_jobs, kMaxJobs, &options->jobs));
  const std::string& text = options->given_seed;
  if (text.empty()) return {};
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), options->seed);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) {
    return InvalidArgument("--seed " + text + ": not a number; use 0 to 18446744073709551615");
  }
  return {};
}

std::string Joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += (text.empty() ? "" : ";") + line;
  return text;
}

// Whether the plot will be there to write: told before hours of work. Leaves nothing behind.
Status CheckPlot(const std::string& path) {
  const bool exists = access(path.c_str(), F_OK) == 0;
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return SystemError("--plot " + path, errno, "name a file in a directory that you can write");
  close(fd);
  if (!exists) unlink(path.c_str());
  return {};
}

int RunScenario(const Scenario& scenario, const Options& options, Engine engine, Size size) {
  RunConfig config;
  config.size = size;
  config.topology = options.topology;
  config.faults = Joined(options.faults);
  config.background = Joined(options.background);
  config.engine = engine;
  config.plugin = options.plugin;
  config.host = options.host.empty() ? scenario.host : options.host;
  // Hosts that are not ideal draw something everywhere.
  const bool seed_matters =
      scenario.seed_matters || (engine == Engine::kPlugin && config.host != std::string("ideal"));
  const uint32_t count = seed_matters ? std::max(1U, options.seeds) : 1;
  if (!seed_matters && options.seeds > 1) {
    fprintf(stderr, "sluice scenario: %s draws nothing at random: one seed says all\n", scenario.name);
  }
  std::vector<uint64_t> seeds;
  for (uint32_t i = 0; i < count; ++i) seeds.push_back(options.seed + i);
  const SeedResults results = RunSeeds(scenario.name, seeds, options.jobs, [&](uint64_t seed) {
    RunConfig one = config;
    one.seed = seed;
    return scenario.run(engine)(one);
  });
  if (options.json) {
    printf("%s\n", ToJson(scenario, config, results.outcomes, results.failures).c_str());
  } else if (!results.outcomes.empty()) {
    PrintTable(stdout, scenario, config, results.outcomes);
  }
  const bool written = OutputWritten();
  PrintSpeed(stderr, results.outcomes);
  for (const std::string& failure : results.failures)
    fprintf(stderr, "sluice scenario: %s\n", failure.c_str());
  if (results.interrupted) fprintf(stderr, "sluice scenario: interrupted; the results so far are above\n");
  if (!options.plot.empty() && !results.outcomes.empty()) {
    if (Status status = WritePlot(options.plot, scenario, results.outcomes); !status.ok()) {
      fprintf(stderr, "sluice scenario: %s\n", status.message().c_str());
      return 1;
    }
  }
  return results.failures.empty() && !results.interrupted && written ? 0 : 1;
}

}  // namespace

void AddOptions(CLI::App* app, Options* o) {
  app->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app->add_option("name", o->name, "which one; list names them, validate checks the model itself")
      ->required();
  app->add_option("--size", o->size_name, "ci, default (at most 20 million packet-hops a run) or full")
      ->capture_default_str();
  app->add_option("--seeds", o->given_seeds,
                  "runs with different random draws, in parallel processes; default 1");
  app->add_option("--seed", o->given_seed, "the first seed; default 1");
  app->add_option("--jobs", o->given_jobs, "processes at a time; default: one per processor");
  app->add_flag("--json", o->json, "one JSON object instead of the table");
  app->add_option("--plot", o->plot, "write the distribution of the scenario's samples to this SVG file");
  app->add_option(
      "--topology", o->topology,
      "network to run on: a TOML file, or one line such as leaf-spine:hosts=128,rate=400G; default: the "
      "scenario's own");
  const auto lines = [app](const char* option, std::vector<std::string>* out, const char* text) {
    app->add_option(option, *out, text)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->allow_extra_args(false);
  };
  lines("--fault", &o->faults,
        "a fault of the network, such as link-down:link=leaf0-spine1,at=2ms,for=5ms; may be repeated");
  lines("--background", &o->background,
        "traffic beside the scenario's, such as storage:hosts=host0..host5,targets=host7; may be repeated");
  app->add_option("--engine", o->engine,
                  "flows (of the network model) or plugin (the real one in virtual time); list tells which "
                  "are there and which is the default");
  app->add_option(
      "--host", o->host,
      "engine plugin: what calls cost a host, ideal (nothing) or typical; default: typical for priority and "
      "storage, else ideal");
  app->add_option("--plugin", o->plugin, "engine plugin: the NET plugin to run");
}

int Run(Options options) {
  Size size;
  if (!ParseSize(options.size_name, &size)) {
    return Complain("--size " + options.size_name + ": unknown; use one of ci, default, full");
  }
  if (Status status = TakeNumbers(&options); !status.ok()) return Complain(status.message());
  if (options.name == "list") {
    PrintList();
    return OutputWritten() ? 0 : 1;
  }
  if (options.name == "validate") {
    if (const std::string why = Unusable(options, Engine::kFlows, false); !why.empty()) return Complain(why);
    if (!options.plot.empty())
      return Complain("--plot " + options.plot + ": validate draws no plot; leave it out");
    const int code = Validate({size, options.seed, options.seeds, options.jobs, options.json});
    return OutputWritten() ? code : 1;
  }
  const Scenario* scenario = FindScenario(options.name);
  if (scenario == nullptr) {
    return Complain(options.name + ": there is no such scenario; sluice scenario list names them");
  }
  Engine engine;
  if (!ChooseEngine(options, *scenario, &engine)) {
    return Complain("--engine " + options.engine + ": " + options.name + " runs with " +
                    (scenario->run_flows != nullptr ? "flows" : "") +
                    (scenario->run_flows != nullptr && scenario->run_plugin != nullptr ? " or " : "") +
                    (scenario->run_plugin != nullptr ? "plugin" : ""));
  }
  if (const std::string why = Unusable(options, engine, scenario->takes_topology); !why.empty()) {
    return Complain(why);
  }
  if (!options.host.empty() && options.host != "ideal" && options.host != "typical") {
    return Complain("--host " + options.host + ": unknown; use ideal or typical");
  }
  if (!options.topology.empty()) {
    Result<soft::Topology> topology = soft::Topology::Parse(options.topology);
    if (!topology.ok()) return Complain(topology.status().message());
    const Status added = topology->Add(Joined(options.faults), Joined(options.background));
    if (!added.ok()) return Complain(added.message());
  }
  if (!options.plot.empty()) {
    if (Status status = CheckPlot(options.plot); !status.ok()) return Complain(status.message());
  }
  return RunScenario(*scenario, options, engine, size);
}

}  // namespace sluice::scenario
