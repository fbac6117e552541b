#include "tests/abi/fake_net.h"

#include <algorithm>
#include <memory>
#include <new>

namespace sluice {
namespace fake {
namespace {

std::unique_ptr<State> g_state;

template <typename T>
Attempt<T> Answer(T* value) {
  State& state = Get();
  if (!state.error.ok()) return Attempt<T>::Failed(&state.error);
  return state.again ? Attempt<T>::Again() : Attempt<T>::Of(value);
}

template <typename T>
Result<T> AnswerResult(T value) {
  State& state = Get();
  if (state.out_of_memory) throw std::bad_alloc();
  if (!state.error.ok()) return state.error;
  return value;
}

State& Note(const char* call, const void* object) {
  State& state = Get();
  state.last_call = call;
  state.object = object;
  return state;
}

Result<MemoryHandle*> Register(const char* call, const void* object, void* data, size_t bytes,
                               MemoryKind kind, uint64_t offset, int fd) {
  State& state = Note(call, object);
  state.data = data;
  state.bytes = bytes;
  state.kind = kind;
  state.offset = offset;
  state.fd = fd;
  return AnswerResult(reinterpret_cast<MemoryHandle*>(state.memory));
}

}  // namespace

State& Get() {
  if (g_state == nullptr) Reset();
  return *g_state;
}

void Reset() {
  g_state = std::make_unique<State>();
}

}  // namespace fake

using fake::Answer;
using fake::AnswerResult;
using fake::Get;
using fake::Note;

TestOutcome Request::Test(int* sizes) noexcept {
  fake::State& state = Note("Test", this);
  state.sizes = sizes;
  if (!state.error.ok()) return {false, &state.error};
  if (state.test.done && sizes != nullptr) std::copy(state.test_sizes.begin(), state.test_sizes.end(), sizes);
  return state.test;
}

Attempt<Request> SendComm::Isend(const void* data, size_t bytes, int tag, MemoryHandle* memory,
                                 void* phandle) noexcept {
  fake::State& state = Note("Isend", this);
  state.data = data;
  state.bytes = bytes;
  state.tag = tag;
  state.handle = memory;
  state.phandle = phandle;
  return Answer<Request>(&state.request);
}

Result<MemoryHandle*> SendComm::RegMr(void* data, size_t bytes, MemoryKind kind) {
  return fake::Register("SendComm::RegMr", this, data, bytes, kind, 0, -1);
}
Result<MemoryHandle*> SendComm::RegMrDmaBuf(void* data, size_t bytes, MemoryKind kind, uint64_t offset,
                                            int fd) {
  return fake::Register("SendComm::RegMrDmaBuf", this, data, bytes, kind, offset, fd);
}
Status SendComm::DeregMr(MemoryHandle* memory) {
  fake::State& state = Note("SendComm::DeregMr", this);
  state.handle = memory;
  return state.error;
}
Status SendComm::Close() {
  return Note("SendComm::Close", this).error;
}

Attempt<Request> RecvComm::Irecv(std::span<const ReceiveBuffer> buffers) noexcept {
  fake::State& state = Note("Irecv", this);
  state.buffers.assign(buffers.begin(), buffers.end());
  return Answer<Request>(&state.request);
}
Attempt<Request> RecvComm::Iflush(std::span<const ReceiveBuffer> buffers) noexcept {
  fake::State& state = Note("Iflush", this);
  state.buffers.assign(buffers.begin(), buffers.end());
  return Answer<Request>(&state.request);
}
Result<MemoryHandle*> RecvComm::RegMr(void* data, size_t bytes, MemoryKind kind) {
  return fake::Register("RecvComm::RegMr", this, data, bytes, kind, 0, -1);
}
Result<MemoryHandle*> RecvComm::RegMrDmaBuf(void* data, size_t bytes, MemoryKind kind, uint64_t offset,
                                            int fd) {
  return fake::Register("RecvComm::RegMrDmaBuf", this, data, bytes, kind, offset, fd);
}
Status RecvComm::DeregMr(MemoryHandle* memory) {
  fake::State& state = Note("RecvComm::DeregMr", this);
  state.handle = memory;
  return state.error;
}
Status RecvComm::Close() {
  return Note("RecvComm::Close", this).error;
}

Attempt<RecvComm> ListenComm::Accept() {
  return Answer<RecvComm>(&Note("Accept", this).recv);
}
Status ListenComm::Close() {
  return Note("ListenComm::Close", this).error;
}

Result<NetContext*> NetContext::Create(uint64_t /*comm_id*/, const CommConfig& config,
                                       DebugLogger /*logger*/) {
  fake::State& state = Note("Create", nullptr);
  state.traffic_class = config.traffic_class;
  return AnswerResult<NetContext*>(&state.context);
}
void NetContext::SetAskProfiler(AskProfiler /*ask*/) {}
Result<NetContext*> NetContext::Global(DebugLogger /*logger*/) {
  return AnswerResult<NetContext*>(&Get().global);
}
Result<ListenComm*> NetContext::Listen(int device, ConnectionHandle* handle) {
  fake::State& state = Note("Listen", this);
  state.device = device;
  handle->fill(std::byte{0x5a});
  return AnswerResult<ListenComm*>(&state.listener);
}
Attempt<SendComm> NetContext::Connect(int device, ConnectionHandle* handle, const CommConfig* config) {
  fake::State& state = Note("Connect", this);
  state.device = device;
  state.data = handle;
  state.traffic_class = config == nullptr ? std::nullopt : std::optional<int>(config->traffic_class);
  return Answer<SendComm>(&state.send);
}
Status NetContext::SetNetAttributes(const NetAttributes& attributes) {
  fake::State& state = Note("SetNetAttributes", this);
  state.attributes = attributes;
  return state.error;
}
Status NetContext::Finalize() {
  fake::State& state = Note("Finalize", this);
  ++state.finalized;
  return state.error;
}

Result<int> DeviceCount() {
  return AnswerResult(Get().device_count);
}
Result<NetProperties> DeviceProperties(int device) {
  Get().device = device;
  return AnswerResult(Get().properties);
}
Result<int> MakeVirtualDevice(std::span<const int> members, int max_members) {
  fake::State& state = Note("MakeVirtualDevice", nullptr);
  state.members.assign(members.begin(), members.end());
  state.max_members = max_members;
  return AnswerResult(7);
}

}  // namespace sluice
