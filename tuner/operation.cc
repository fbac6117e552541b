#include "tuner/operation.h"

#include <array>
#include <cctype>
#include <span>

namespace sluice {
namespace {

constexpr std::array<std::string_view, kFunctions> kFunctionNames = {
    "broadcast",  "reduce", "all_gather",  "reduce_scatter", "all_reduce", "send_recv",
    "send",       "recv",   "all_to_all",  "scatter",        "gather",     "all_gather_v",
    "put_signal", "signal", "wait_signal", "unknown",        "collective", "point_to_point"};
constexpr std::array<std::string_view, kAlgorithms> kAlgorithmNames = {
    "tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat", "unknown"};
constexpr std::array<std::string_view, kProtocols> kProtocolNames = {"ll", "ll128", "simple", "unknown"};
constexpr std::array<std::string_view, kParallelisms> kParallelismNames = {"unknown", "data", "tensor",
                                                                           "pipeline", "expert"};

// Lower case without what people write between the parts.
std::string Plain(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (c == '_' || c == '-' || c == ' ') continue;
    plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return plain;
}

template <typename Enum>
std::string_view NameIn(std::span<const std::string_view> names, Enum value) {
  const auto index = static_cast<size_t>(value);
  return index < names.size() ? names[index] : "unknown";
}

template <typename Enum>
std::optional<Enum> FromName(std::span<const std::string_view> names, std::string_view name) {
  const std::string plain = Plain(name);
  if (plain == "unknown") return std::nullopt;
  for (size_t i = 0; i < names.size(); ++i) {
    if (Plain(names[i]) == plain) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

}  // namespace

std::string_view Name(Function function) {
  return NameIn(kFunctionNames, function);
}
std::string_view Name(Algorithm algorithm) {
  return NameIn(kAlgorithmNames, algorithm);
}
std::string_view Name(Protocol protocol) {
  return NameIn(kProtocolNames, protocol);
}
std::string_view Name(Parallelism parallelism) {
  return NameIn(kParallelismNames, parallelism);
}

std::optional<Function> FunctionFromName(std::string_view name) {
  return FromName<Function>(kFunctionNames, name);
}
std::optional<Algorithm> AlgorithmFromName(std::string_view name) {
  return FromName<Algorithm>(kAlgorithmNames, name);
}
std::optional<Protocol> ProtocolFromName(std::string_view name) {
  return FromName<Protocol>(kProtocolNames, name);
}
std::optional<Parallelism> ParallelismFromName(std::string_view name) {
  return FromName<Parallelism>(kParallelismNames, name);
}

}  // namespace sluice
