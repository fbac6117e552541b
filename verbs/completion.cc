#include "verbs/completion.h"

namespace sluice {

std::string_view CompletionStatusName(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return "success";
    case IBV_WC_LOC_LEN_ERR:
      return "local length error";
    case IBV_WC_LOC_QP_OP_ERR:
      return "local queue pair operation error";
    case IBV_WC_LOC_EEC_OP_ERR:
      return "local EE context operation error";
    case IBV_WC_LOC_PROT_ERR:
      return "local protection error";
    case IBV_WC_WR_FLUSH_ERR:
      return "work request flushed";
    case IBV_WC_MW_BIND_ERR:
      return "memory window bind error";
    case IBV_WC_BAD_RESP_ERR:
      return "bad response";
    case IBV_WC_LOC_ACCESS_ERR:
      return "local access error";
    case IBV_WC_REM_INV_REQ_ERR:
      return "remote invalid request";
    case IBV_WC_REM_ACCESS_ERR:
      return "remote access error";
    case IBV_WC_REM_OP_ERR:
      return "remote operation error";
    case IBV_WC_RETRY_EXC_ERR:
      return "transport retries exceeded";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return "receiver-not-ready retries exceeded";
    case IBV_WC_LOC_RDD_VIOL_ERR:
      return "local RDD violation";
    case IBV_WC_REM_INV_RD_REQ_ERR:
      return "remote invalid RD request";
    case IBV_WC_REM_ABORT_ERR:
      return "remote aborted";
    case IBV_WC_INV_EECN_ERR:
      return "invalid EE context number";
    case IBV_WC_INV_EEC_STATE_ERR:
      return "invalid EE context state";
    case IBV_WC_FATAL_ERR:
      return "fatal error";
    case IBV_WC_RESP_TIMEOUT_ERR:
      return "response timeout";
    case IBV_WC_GENERAL_ERR:
      return "general error";
    case IBV_WC_TM_ERR:
      return "tag matching error";
    case IBV_WC_TM_RNDV_INCOMPLETE:
      return "tag matching rendezvous incomplete";
  }
  return "unknown status";
}

std::string_view CompletionOpcodeName(ibv_wc_opcode opcode) {
  switch (opcode) {
    case IBV_WC_SEND:
      return "send";
    case IBV_WC_RDMA_WRITE:
      return "RDMA write";
    case IBV_WC_RDMA_READ:
      return "RDMA read";
    case IBV_WC_COMP_SWAP:
      return "compare and swap";
    case IBV_WC_FETCH_ADD:
      return "fetch and add";
    case IBV_WC_RECV:
      return "receive";
    case IBV_WC_RECV_RDMA_WITH_IMM:
      return "receive with immediate";
    default:
      return "other operation";
  }
}

std::string_view CompletionHint(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return {};
    case IBV_WC_WR_FLUSH_ERR:
      return "the queue pair failed or was closed before this request; an earlier error is the cause";
    case IBV_WC_RETRY_EXC_ERR:
      return "the peer's port did not acknowledge: the peer process or host died, a link is down, or the "
             "network drops "
             "these packets; check both GIDs (RoCE version, subnet, VLAN; try another GID index), the "
             "traffic class on "
             "the switches, and raise timeout or retry count for lossy networks";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return "the peer had no receive entry posted for longer than the retries last; this is a defect of the "
             "protocol or a "
             "peer that stopped";
    case IBV_WC_RESP_TIMEOUT_ERR:
      return "the peer did not answer in time: check that it is alive and reachable";
    case IBV_WC_REM_ACCESS_ERR:
      return "the peer refused the address or key: its buffer was deregistered or is smaller than the "
             "message (often one "
             "rank aborted while the other still sends)";
    case IBV_WC_REM_INV_REQ_ERR:
      return "the peer could not accept the request: message longer than its buffer, or an operation that it "
             "does not allow";
    case IBV_WC_REM_OP_ERR:
    case IBV_WC_REM_ABORT_ERR:
      return "the peer's HCA failed the request; look for the cause on the peer";
    case IBV_WC_LOC_PROT_ERR:
      return "the local buffer is not covered by its registration: it was deregistered or freed while in use";
    case IBV_WC_LOC_LEN_ERR:
      return "a message does not fit the local buffer or exceeds the port's message size";
    case IBV_WC_LOC_ACCESS_ERR:
      return "the peer wrote to memory of this process that does not allow it";
    case IBV_WC_LOC_QP_OP_ERR:
      return "the HCA found the work request inconsistent; see the vendor error";
    case IBV_WC_BAD_RESP_ERR:
      return "the peer's answer was not understood: different firmware or a mix-up of queue pairs";
    case IBV_WC_FATAL_ERR:
      return "the HCA is in a fatal state: see the kernel log";
    default:
      return "see the vendor error and the kernel log";
  }
}

bool IsRemoteFailure(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_OP_ERR:
    case IBV_WC_REM_ABORT_ERR:
    case IBV_WC_REM_INV_RD_REQ_ERR:
    case IBV_WC_BAD_RESP_ERR:
    case IBV_WC_WR_FLUSH_ERR:
      return true;
    default:
      return false;
  }
}

std::string DescribeCompletion(const ibv_wc& wc, const CompletionContext& context) {
  std::string text;
  if (!context.device.empty()) text.append(context.device).append(": ");
  if (!context.what.empty()) text.append(context.what).append(": ");
  text.append(CompletionStatusName(wc.status)).append(" (status ").append(std::to_string(wc.status));
  if (wc.status != IBV_WC_SUCCESS) text.append(", vendor error ").append(std::to_string(wc.vendor_err));
  text.append(") on queue pair ").append(std::to_string(wc.qp_num));
  if (!context.local.empty()) text.append(", local ").append(context.local);
  if (!context.remote.empty()) text.append(", remote ").append(context.remote);
  const std::string_view hint = CompletionHint(wc.status);
  if (!hint.empty()) text.append("; ").append(hint);
  return text;
}

}  // namespace sluice
