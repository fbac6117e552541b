// Reading topologies: TOML files and the one-line form.
#include "verbs/soft/model/topology.h"

#include <toml++/toml.h>
#include <unistd.h>
#include <cerrno>
#include <fstream>
#include <sstream>

#include "verbs/soft/model/topology_check.h"
#include "verbs/soft/model/topology_settings.h"

namespace sluice::soft {
namespace {

std::vector<NamedHost> NameHosts(const FabricSettings& settings) {
  std::vector<NamedHost> hosts;
  for (uint32_t i = 0; i < settings.hosts; ++i) hosts.push_back({"host" + std::to_string(i), settings.host});
  return hosts;
}

Result<Topology> Checked(Topology topology) {
  SLUICE_RETURN_IF_ERROR(CheckTopology(topology));
  return topology;
}

// The text of a scalar. False: a table, an array, a date or a fraction, which no key takes.
bool ScalarText(const toml::node& node, std::string* text) {
  if (const auto* string = node.as_string()) {
    *text = string->get();
  } else if (const auto* integer = node.as_integer()) {
    *text = std::to_string(integer->get());
  } else if (const auto* boolean = node.as_boolean()) {
    *text = boolean->get() ? "true" : "false";
  } else {
    return false;
  }
  return true;
}

std::string At(std::string_view file, const toml::node& node) {
  return std::string(file) + ":" + std::to_string(node.source().begin.line);
}

// Calls set(key, value, where, &known) for every key of `table`.
template <typename Set>
Status ForEachKey(const toml::table& table, std::string_view file, const std::string& section,
                  const std::string& keys, Set set) {
  for (const auto& [key, node] : table) {
    const std::string where = At(file, node);
    std::string value;
    if (!ScalarText(node, &value)) {
      return InvalidArgument(where + ": " + std::string(key.str()) + " in [" + section +
                             "] must be a string, an integer, true or false");
    }
    bool known = false;
    SLUICE_RETURN_IF_ERROR(set(key.str(), value, where, &known));
    if (!known) {
      return InvalidArgument(where + ": no key " + std::string(key.str()) + " in [" + section +
                             "]; there are: " + keys);
    }
  }
  return {};
}

Status ApplyHost(const toml::table& table, std::string_view file, std::vector<NamedHost>* hosts) {
  NamedHost* host = nullptr;
  const std::string where = At(file, table);
  if (const auto name = table["name"].value<std::string>()) {
    for (NamedHost& candidate : *hosts) {
      if (candidate.name == *name) host = &candidate;
    }
    if (host == nullptr) {
      return InvalidArgument(At(file, *table.get("name")) + ": name = " + *name +
                             "; no such host, there are host0 to host" + std::to_string(hosts->size() - 1) +
                             " and those renamed by index");
    }
  } else if (const auto index = table["index"].value<int64_t>()) {
    if (*index < 0 || *index >= static_cast<int64_t>(hosts->size())) {
      return InvalidArgument(At(file, *table.get("index")) + ": index = " + std::to_string(*index) +
                             "; allowed: 0 to " + std::to_string(hosts->size() - 1));
    }
    host = &(*hosts)[static_cast<size_t>(*index)];
  } else {
    return InvalidArgument(where + ": [[host]] has neither name nor index; give one, such as index = 0");
  }
  return ForEachKey(
      table, file, "[host]", "name, index, rename, " + HostKeys(),
      [&](std::string_view key, const std::string& value, const std::string& line, bool* known) {
        *known = true;
        if (key == "name" || key == "index") return Status();
        if (key != "rename") return SetHostKey(&host->settings, key, value, line, known);
        if (value.empty()) return InvalidArgument(line + ": rename = \"\"; allowed: a name");
        host->name = value;
        return Status();
      });
}

Status ApplyHosts(const toml::node& node, std::string_view file, std::vector<NamedHost>* hosts) {
  const toml::array* array = node.as_array();
  if (array == nullptr)
    return InvalidArgument(At(file, node) + ": host must be written [[host]], once per host");
  for (const toml::node& element : *array) {
    const toml::table* table = element.as_table();
    if (table == nullptr)
      return InvalidArgument(At(file, element) + ": host must be written [[host]], once per host");
    SLUICE_RETURN_IF_ERROR(ApplyHost(*table, file, hosts));
  }
  return {};
}

}  // namespace

Topology Topology::Default() {
  return BuildSingleSwitch(NameHosts({}), {}, true);
}

Result<Topology> Topology::FromText(std::string_view one_line) {
  FabricSettings settings;
  const std::string where = "topology \"" + std::string(one_line) + "\"";
  std::string_view rest = one_line;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      return InvalidArgument(where + ": \"" + std::string(item) +
                             "\" is neither KEY=VALUE nor a file; keys: " + FabricKeys() + ", " +
                             LimitKeys());
    }
    const std::string_view key = item.substr(0, equals);
    const std::string value(item.substr(equals + 1));
    bool known = false;
    SLUICE_RETURN_IF_ERROR(SetFabricKey(&settings, key, value, where, &known));
    if (!known) SLUICE_RETURN_IF_ERROR(SetLimitKey(&settings.limits, key, value, where, &known));
    if (!known) {
      return InvalidArgument(where + ": no key " + std::string(key) + "; there are: " + FabricKeys() + ", " +
                             LimitKeys());
    }
  }
  return Checked(BuildSingleSwitch(NameHosts(settings), settings.limits, settings.on_demand));
}

Result<Topology> Topology::FromToml(std::string_view toml, std::string_view file_name) {
  toml::parse_result parsed = toml::parse(toml, file_name);
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    return InvalidArgument(std::string(file_name) + ":" + std::to_string(error.source().begin.line) +
                           ": not TOML: " + std::string(error.description()));
  }
  const toml::table& root = parsed.table();
  FabricSettings settings;
  for (const auto& [key, node] : root) {
    if (key == "host") continue;
    const toml::table* table = node.as_table();
    if (table == nullptr || (key != "fabric" && key != "limits")) {
      return InvalidArgument(At(file_name, node) + ": unexpected " + std::string(key.str()) +
                             "; there are the sections [fabric], [limits] and [[host]]");
    }
    const bool limits = key == "limits";
    SLUICE_RETURN_IF_ERROR(ForEachKey(
        *table, file_name, std::string(key.str()), limits ? LimitKeys() : FabricKeys(),
        [&](std::string_view name, const std::string& value, const std::string& where, bool* known) {
          return limits ? SetLimitKey(&settings.limits, name, value, where, known)
                        : SetFabricKey(&settings, name, value, where, known);
        }));
  }
  std::vector<NamedHost> hosts = NameHosts(settings);
  if (const toml::node* node = root.get("host")) SLUICE_RETURN_IF_ERROR(ApplyHosts(*node, file_name, &hosts));
  Result<Topology> topology = Checked(BuildSingleSwitch(hosts, settings.limits, settings.on_demand));
  if (!topology.ok()) return InvalidArgument(std::string(file_name) + ": " + topology.status().message());
  return topology;
}

Result<Topology> Topology::FromFile(const std::string& path) {
  errno = 0;
  std::ifstream file(path);
  std::stringstream text;
  if (file) text << file.rdbuf();
  if (!file) {
    return SystemError("topology file " + path, errno != 0 ? errno : EIO,
                       "check the path and that the file is readable");
  }
  return FromToml(text.str(), path);
}

Result<Topology> Topology::Parse(std::string_view text) {
  if (text.empty()) return Default();
  const std::string path(text);
  if (text.ends_with(".toml") || access(path.c_str(), F_OK) == 0) return FromFile(path);
  return FromText(text);
}

}  // namespace sluice::soft
