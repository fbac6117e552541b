#include "verbs/sa_mad.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace sluice {
namespace {

// Header of every datagram.
constexpr size_t kBaseVersion = 0;
constexpr size_t kClass = 1;
constexpr size_t kClassVersion = 2;
constexpr size_t kMethod = 3;
constexpr size_t kStatus = 4;
constexpr size_t kTransactionLow = 12;
constexpr size_t kAttribute = 16;
constexpr size_t kHeaderBytes = 24;
// Of the SA, behind the header of segmented transfers.
constexpr size_t kComponentMask = 48;
constexpr size_t kRecord = 56;
constexpr size_t kRecordBytes = 64;
// In a PathRecord.
constexpr size_t kDgid = kRecord + 8;
constexpr size_t kSgid = kRecord + 24;
constexpr size_t kDlid = kRecord + 40;
constexpr size_t kSlid = kRecord + 42;
constexpr size_t kReversibleNumbPath = kRecord + 49;
constexpr size_t kPkey = kRecord + 50;
constexpr size_t kQosClassSl = kRecord + 52;

constexpr uint8_t kSubnetAdministration = 0x03;
constexpr uint8_t kGet = 0x01;
constexpr uint8_t kGetResponse = 0x81;
constexpr uint16_t kPathRecord = 0x0035;

// Components of a PathRecord that the question names, as bits of the mask.
constexpr uint64_t kHasDgid = 1 << 2;
constexpr uint64_t kHasSgid = 1 << 3;
constexpr uint64_t kHasDlid = 1 << 4;
constexpr uint64_t kHasSlid = 1 << 5;
constexpr uint64_t kHasReversible = 1 << 11;
constexpr uint64_t kHasNumbPath = 1 << 12;
constexpr uint64_t kHasPkey = 1 << 13;
constexpr uint64_t kHasSl = 1 << 15;

void Put(Mad& mad, size_t at, uint64_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i)
    mad[at + i] = static_cast<std::byte>(value >> 8 * (bytes - 1 - i) & 0xff);
}

uint64_t Get(std::span<const std::byte> mad, size_t at, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value = value << 8 | std::to_integer<uint64_t>(mad[at + i]);
  return value;
}

void PutGid(Mad& mad, size_t at, const std::array<uint8_t, 16>& gid) {
  std::memcpy(&mad[at], gid.data(), gid.size());
}

std::string End(uint16_t lid, const std::array<uint8_t, 16>& gid, bool by_gid) {
  if (!by_gid) return "LID " + std::to_string(lid);
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(AF_INET6, gid.data(), text, sizeof(text));
  return std::string("GID ") + text;
}

bool ByGid(const PathQuestion& question) {
  return question.slid == 0 || question.dlid == 0;
}

}  // namespace

std::string PathQuestion::Describe() const {
  std::string text = "from " + End(slid, sgid, ByGid(*this)) + " to " + End(dlid, dgid, ByGid(*this));
  if (sl >= 0) text += " with SL " + std::to_string(sl);
  return text;
}

std::string DescribeSaStatus(uint16_t status) {
  const char* meaning = "unknown";
  if ((status & kMadBusy) != 0) {
    meaning = "busy";
  } else if ((status & 0x0002) != 0) {
    meaning = "redirected";
  } else if ((status & 0x001c) != 0) {
    meaning = "the administrator does not know the question";
  } else {
    switch (status >> 8) {
      case 1:
        meaning = "no resources";
        break;
      case 2:
        meaning = "invalid request";
        break;
      case 3:
        meaning = "no such path";
        break;
      case 4:
        meaning = "too many records";
        break;
      case 5:
        meaning = "invalid GID";
        break;
      case 6:
        meaning = "components missing";
        break;
      case 7:
        meaning = "not allowed";
        break;
      default:
        break;
    }
  }
  char text[96];
  snprintf(text, sizeof(text), "0x%04x (%s)", status, meaning);
  return text;
}

Mad EncodePathQuestion(const PathQuestion& question, uint32_t transaction) {
  Mad mad{};
  Put(mad, kBaseVersion, 1, 1);
  Put(mad, kClass, kSubnetAdministration, 1);
  Put(mad, kClassVersion, 2, 1);
  Put(mad, kMethod, kGet, 1);
  Put(mad, kTransactionLow, transaction, 4);
  Put(mad, kAttribute, kPathRecord, 2);
  uint64_t mask = kHasReversible | kHasNumbPath;
  Put(mad, kReversibleNumbPath, 0x80 | 1, 1);
  if (ByGid(question)) {
    mask |= kHasSgid | kHasDgid;
    PutGid(mad, kSgid, question.sgid);
    PutGid(mad, kDgid, question.dgid);
  } else {
    mask |= kHasSlid | kHasDlid;
    Put(mad, kSlid, question.slid, 2);
    Put(mad, kDlid, question.dlid, 2);
  }
  if (question.pkey != 0) {
    mask |= kHasPkey;
    Put(mad, kPkey, question.pkey, 2);
  }
  if (question.sl >= 0) {
    mask |= kHasSl;
    Put(mad, kQosClassSl, static_cast<uint64_t>(question.sl & 0xf), 2);
  }
  Put(mad, kComponentMask, mask, 8);
  return mad;
}

std::optional<SaReply> DecodeSaReply(std::span<const std::byte> mad) {
  if (mad.size() < kHeaderBytes || Get(mad, kBaseVersion, 1) != 1 ||
      Get(mad, kClass, 1) != kSubnetAdministration || Get(mad, kMethod, 1) != kGetResponse ||
      Get(mad, kAttribute, 2) != kPathRecord) {
    return std::nullopt;
  }
  SaReply reply;
  reply.transaction = static_cast<uint32_t>(Get(mad, kTransactionLow, 4));
  reply.status = static_cast<uint16_t>(Get(mad, kStatus, 2));
  if (reply.status != kSaOk) return reply;
  // On a wire every datagram has 256 bytes; a simulated one may end with the record.
  if (mad.size() < kRecord + kRecordBytes) return std::nullopt;
  reply.slid = static_cast<uint16_t>(Get(mad, kSlid, 2));
  reply.dlid = static_cast<uint16_t>(Get(mad, kDlid, 2));
  reply.sl = static_cast<uint8_t>(Get(mad, kQosClassSl, 2) & 0xf);
  return reply;
}

}  // namespace sluice
