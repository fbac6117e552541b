#include "plugin/params.h"

#include <unistd.h>
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/words.h"

namespace sluice {
namespace {

std::string Range(const IntParam& type) {
  return std::to_string(type.min) + ".." + std::to_string(type.max);
}

// As NCCL reads a number (strtoll, base 0), but text behind it is an error instead of being ignored.
Result<int64_t> ParseInt(const ParamSpec& spec, const IntParam& type, const char* text) {
  const std::string setting = std::string(spec.name) + "=" + text;
  const std::string remedy =
      "; set " + Range(type) + ", or unset it for the default " + std::to_string(type.default_value);
  char* end = nullptr;
  errno = 0;
  const long long value = std::strtoll(text, &end, 0);
  const bool overflow = errno == ERANGE;
  while (std::isspace(static_cast<unsigned char>(*end))) ++end;
  if (end == text || *end != '\0') return InvalidArgument(setting + " is not a number" + remedy);
  if (overflow || value < type.min || value > type.max) {
    return InvalidArgument(setting + " is out of range " + Range(type) + remedy);
  }
  return static_cast<int64_t>(value);
}

void Store(const IntParam& type, int64_t value, Params& params) {
  std::visit(
      [&](auto member) {
        if constexpr (!std::is_same_v<decltype(member), std::monostate>) {
          params.*member = static_cast<std::remove_reference_t<decltype(params.*member)>>(value);
        }
      },
      type.field);
}

std::string NoEffectNote(const ParamSpec& spec, const char* text) {
  return std::string(spec.name) + "=" + text + " has no effect: " + spec.text;
}

Status ParseOne(const ParamSpec& spec, const char* text, Params& params) {
  if (const auto* type = std::get_if<TextParam>(&spec.type)) {
    if (type->store != nullptr) return type->store(text, params);
    params.notes.push_back(NoEffectNote(spec, text));
    return Status::Ok();
  }
  const IntParam& type = std::get<IntParam>(spec.type);
  const Result<int64_t> value = ParseInt(spec, type, text);
  if (spec.status == ParamStatus::kNoEffect) {
    if (!value.ok() || *value != type.default_value) params.notes.push_back(NoEffectNote(spec, text));
    return Status::Ok();
  }
  if (!value.ok()) return value.status();
  if (spec.status == ParamStatus::kRefused && *value != type.default_value) {
    return InvalidArgument(std::string(spec.name) + "=" + text + " is refused: " + spec.text);
  }
  Store(type, *value, params);
  return Status::Ok();
}

// What only shows when all variables are known.
Status CheckTogether(Params& params) {
  constexpr int64_t kDefaultArThreshold = 8192;
  if (params.ib_ar_threshold_bytes == -2) params.ib_ar_threshold_bytes = kDefaultArThreshold;
  if (params.force_flush && params.gdr_flush_disable) {
    return InvalidArgument("SLUICE_FORCE_FLUSH=1 contradicts NCCL_GDR_FLUSH_DISABLE=1; unset one of them");
  }
  // A link that is admitted later than that is of no use to the connection behind it.
  params.admit_timeout_ms = std::min(params.admit_timeout_ms, params.connect_timeout_ms);
  const auto overridden = [&](const char* winner, int winner_value, const char* loser, int loser_value) {
    if (winner_value < 0 || loser_value < 0 || winner_value == loser_value) return;
    params.notes.push_back(std::string(winner) + "=" + std::to_string(winner_value) + " wins over " + loser +
                           "=" + std::to_string(loser_value));
  };
  overridden("SLUICE_SL", params.sl, "NCCL_IB_SL", params.ib_sl);
  overridden("SLUICE_TC", params.tc, "NCCL_IB_TC", params.ib_tc);
  overridden("SLUICE_TC", params.tc, "NCCL_IB_FIFO_TC", params.ib_fifo_tc);
  if (params.ib_gid_index >= 0 &&
      (!params.ib_addr_range.empty() || params.ib_addr_family != AddressFamily::kAny)) {
    params.notes.push_back("NCCL_IB_GID_INDEX=" + std::to_string(params.ib_gid_index) +
                           " wins over NCCL_IB_ADDR_RANGE and NCCL_IB_ADDR_FAMILY");
  }
  return Status::Ok();
}

// The part that tells variables apart; empty for names that are not of our families.
std::string_view OwnPart(std::string_view name) {
  for (const std::string_view prefix : {"SLUICE_", "NCCL_IB_"}) {
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  }
  return {};
}

}  // namespace

bool InterfaceFilter::Matches(std::string_view interface) const {
  if (names.empty()) return true;
  const bool named = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return exact ? interface == name : interface.starts_with(name);
  });
  return named != exclude;
}

Result<Params> ParseParams(const Environment& environment) {
  Params params;
  for (const ParamSpec& spec : ParamRegistry()) {
    const char* const text = environment(spec.name);
    if (text == nullptr || *text == '\0') continue;
    SLUICE_RETURN_IF_ERROR(ParseOne(spec, text, params));
  }
  SLUICE_RETURN_IF_ERROR(CheckTogether(params));
  return params;
}

std::vector<std::string> FindMisspelt(const char* const* environ) {
  const std::span<const ParamSpec> registry = ParamRegistry();
  std::vector<std::string> lines;
  for (; environ != nullptr && *environ != nullptr; ++environ) {
    const std::string_view name(*environ, std::strcspn(*environ, "="));
    const std::string_view own = OwnPart(name);
    if (own.empty()) continue;
    const ParamSpec* nearest = nullptr;
    int best = INT_MAX;
    for (const ParamSpec& spec : registry) {
      const int distance = EditDistance(name, spec.name);
      if (distance < best) {
        best = distance;
        nearest = &spec;
      }
    }
    // Short names lie close together by nature: one letter in four may be wrong, two at most.
    const int allowed = std::clamp(static_cast<int>(own.size()) / 4, 0, 2);
    if (best > 0 && best <= allowed) {
      lines.push_back(std::string(name) + " is not a variable of Sluice; did you mean " + nearest->name +
                      "?");
    }
  }
  return lines;
}

const Result<Params>& GetParams() {
  static const auto* const kParams = [] {
    auto* parsed =
        new Result<Params>(ParseParams([](const char* name) -> const char* { return std::getenv(name); }));
    if (parsed->ok()) {
      for (std::string& line : FindMisspelt(environ)) (*parsed)->notes.push_back(std::move(line));
    }
    return parsed;
  }();
  return *kParams;
}

}  // namespace sluice
