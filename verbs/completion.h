// Completions in words. Of a failed completion verbs defines only wr_id, status, qp_num and vendor_err:
// nothing else is read here. Thread rule: any thread; allocates, so for the first error of a queue pair, not
// per completion.
#pragma once

#include <infiniband/verbs.h>

#include <string>
#include <string_view>

namespace sluice {

// "retry exceeded": a name for every ibv_wc_status, "unknown status" otherwise.
std::string_view CompletionStatusName(ibv_wc_status status);

// Opcode of a successful completion, "RDMA write", "receive with immediate", ...
std::string_view CompletionOpcodeName(ibv_wc_opcode opcode);

// What usually causes the status and what to look at, one clause; empty for IBV_WC_SUCCESS.
std::string_view CompletionHint(ibv_wc_status status);

// Flushed work requests are a consequence: the cause was reported by an earlier completion or an async event.
inline bool IsFlush(ibv_wc_status status) {
  return status == IBV_WC_WR_FLUSH_ERR;
}
// Whether the status blames the peer or the network (kRemote) rather than this host (kSystem).
bool IsRemoteFailure(ibv_wc_status status);

// What is known about the connection whose queue pair failed. Empty strings are left out of the sentence.
struct CompletionContext {
  std::string_view device{};  // "mlx5_0:1"
  std::string_view what{};    // "data of a send to rank host7"
  std::string_view local{};   // "GID 10.0.0.1, index 3"
  std::string_view remote{};  // "queue pair 17 at GID 10.0.0.2"
};

// One line: status by name and number, vendor error, queue pair, both addresses, hint.
std::string DescribeCompletion(const ibv_wc& wc, const CompletionContext& context);

}  // namespace sluice
