// What holds without a policy: the rules, and which names of communicators tell their parallelism.
#include "tuner/policy_rules.h"

namespace sluice {

const char* const kDefaultRules = R"(
[[rule]]
name = "tensor parallel"
parallelism = "tensor"
class = "latency"

[[rule]]
name = "pipeline"
parallelism = "pipeline"
class = "latency"

[[rule]]
name = "small collectives"
kind = "collective"
bytes = "[0, 1MiB]"
class = "latency"

# Without the size, NCCL's own choice says it: it takes these protocols for small messages.
[[rule]]
name = "low-latency protocols"
kind = "collective"
protocol = ["ll", "ll128"]
bytes = "[0, 1MiB]"
unknown_bytes = true
class = "latency"

# Less than for collectives: an all-to-all sends this much to every rank.
[[rule]]
name = "small messages"
kind = "point_to_point"
bytes = "[0, 64KiB]"
class = "latency"
)";

namespace {

struct NamePattern {
  std::string_view glob;  // of the name in lower case, parts separated and surrounded by '_'
  Parallelism parallelism;
};

// The first that matches decides. Data comes first, because groups over several dimensions (tensor and data, expert and data)
// carry gradients; then what narrows "expert".
constexpr NamePattern kNamePatterns[] = {
    {"*_data_parallel_*", Parallelism::kData},  // Megatron-LM, DeepSpeed
    {"*_data_model_parallel_*", Parallelism::kData},
    {"*_dp_*", Parallelism::kData},  // device meshes of PyTorch, vLLM
    {"*_edp_*", Parallelism::kData},
    {"*_ddp_*", Parallelism::kData},
    {"*_fsdp_*", Parallelism::kData},
    {"*_hsdp_*", Parallelism::kData},
    {"*_zero_*", Parallelism::kData},
    {"*_distributed_optimizer_*", Parallelism::kData},
    {"*_expert_tensor_parallel_*", Parallelism::kTensor},
    {"*_etp_*", Parallelism::kTensor},
    {"*_expert_*", Parallelism::kExpert},
    {"*_ep_*", Parallelism::kExpert},
    {"*_moe_*", Parallelism::kExpert},
    {"*_tensor_*", Parallelism::kTensor},
    {"*_tp_*", Parallelism::kTensor},
    {"*_pipeline_*", Parallelism::kPipeline},
    {"*_pipe_*", Parallelism::kPipeline},
    {"*_pp_*", Parallelism::kPipeline},
};

}  // namespace

Parallelism ParallelismOfName(const std::string& name, const std::vector<ParallelismPattern>& patterns) {
  if (name.empty()) return Parallelism::kUnknown;
  for (const ParallelismPattern& pattern : patterns) {
    if (GlobMatches(pattern.glob, name)) return pattern.parallelism;
  }
  std::string parts = "_";
  for (const char c : name) {
    const bool upper = c >= 'A' && c <= 'Z';
    const bool part = upper || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    parts += !part ? '_' : upper ? static_cast<char>(c - 'A' + 'a') : c;
  }
  parts += '_';
  for (const NamePattern& pattern : kNamePatterns) {
    if (GlobMatches(pattern.glob, parts)) return pattern.parallelism;
  }
  return Parallelism::kUnknown;
}

}  // namespace sluice
