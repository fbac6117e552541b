#include "tests/fault/rig.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <thread>

namespace sluice::fault {
namespace {

std::mutex lines_mutex;
// Reachable to the end of the process: the plugin's event thread may log while the program exits.
std::vector<std::string>& lines = *new std::vector<std::string>;

int OpenDescriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count - 1;  // the directory itself
}

}  // namespace

void FaultTest::SetUp() {
  SoftFabricTest::SetUp();
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
}

void FaultTest::RunRole(const std::string& role, const Variables& variables) {
  EXPECT_EQ(StartPeer(role, variables).Wait(), 0) << "role " << role << " failed, see above";
}

const void* Symbol(const char* name) {
  static void* const library = [] {
    const std::string path = std::string(getenv("SLUICE_BUILD_DIR")) + "/lib/libnccl-net-sluice.so";
    void* const opened = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (opened == nullptr) fprintf(stderr, "%s\n", dlerror());
    return opened;
  }();
  SOFT_CHECK(library != nullptr);
  const void* const found = dlsym(library, name);
  SOFT_CHECK(found != nullptr);
  return found;
}

const nccl::NetV12& Net() {
  static const auto& table = Table<nccl::NetV12>("ncclNetPlugin_v12");
  return table;
}

void Log(int level, unsigned long, const char*, int, const char* format, ...) {
  char text[2048];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  static const bool verbose = getenv("SLUICE_FAULT_VERBOSE") != nullptr;
  if (verbose) fprintf(stderr, "[%d] %d %s\n", getpid(), level, text);
  if (level > nccl::kLogInfo) return;  // as with NCCL_DEBUG=INFO
  const std::lock_guard lock(lines_mutex);
  lines.emplace_back(text);
}

std::vector<std::string> Lines(const std::string& part) {
  const std::lock_guard lock(lines_mutex);
  std::vector<std::string> found;
  for (const std::string& line : lines) {
    if (line.find(part) != std::string::npos) found.push_back(line);
  }
  return found;
}

void ForgetLines() {
  const std::lock_guard lock(lines_mutex);
  lines.clear();
}

void* Init(int traffic_class) {
  static std::atomic<uint64_t> next{1};
  void* ctx = nullptr;
  nccl::NetCommConfig config{traffic_class};
  if (Net().init(&ctx, next.fetch_add(1), &config, Log, nullptr) != kSuccess) {
    fprintf(stderr, "init failed: %s\n", testing::PrintToString(Lines()).c_str());
    _exit(1);
  }
  return ctx;
}

bool Until(const std::function<bool()>& step, const char* what) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (int tries = 1; !step(); ++tries) {
    if (std::chrono::steady_clock::now() > deadline) {
      ADD_FAILURE() << "waited in vain for " << what << "; log:\n  " << testing::PrintToString(Lines());
      return false;
    }
    // The fabric and the event thread need the processors too.
    if (tries % 16 == 0) std::this_thread::yield();
  }
  return true;
}

void* Listen(void* ctx, Handle* handle, int device) {
  void* listen = nullptr;
  EXPECT_EQ(Net().listen(ctx, device, handle->data(), &listen), kSuccess) << testing::PrintToString(Lines());
  return listen;
}

Wire Connect(void* from, void* to, int from_device, int to_device) {
  Handle handle;
  Wire wire;
  void* const listen = Listen(to, &handle, to_device);
  NcclResult result = kSuccess;
  Until(
      [&] {
        if (wire.send == nullptr) {
          result = Net().connect(from, from_device, handle.data(), &wire.send, nullptr);
        }
        if (result == kSuccess && wire.recv == nullptr) result = Net().accept(listen, &wire.recv, nullptr);
        return result != kSuccess || (wire.send != nullptr && wire.recv != nullptr);
      },
      "connect and accept");
  EXPECT_EQ(result, kSuccess) << testing::PrintToString(Lines());
  EXPECT_EQ(Net().closeListen(listen), kSuccess);
  return wire;
}

NcclResult TryConnect(void* from, void* to, Wire* wire, int from_device, int to_device) {
  Handle handle;
  void* listen = nullptr;
  NcclResult result = Net().listen(to, to_device, handle.data(), &listen);
  if (result != kSuccess) return result;
  Until(
      [&] {
        if (wire->send == nullptr)
          result = Net().connect(from, from_device, handle.data(), &wire->send, nullptr);
        if (result == kSuccess && wire->recv == nullptr) result = Net().accept(listen, &wire->recv, nullptr);
        return result != kSuccess || (wire->send != nullptr && wire->recv != nullptr);
      },
      "connect to end");
  EXPECT_EQ(Net().closeListen(listen), kSuccess);
  return result;
}

void Close(const Wire& wire) {
  EXPECT_EQ(Net().closeSend(wire.send), kSuccess);
  EXPECT_EQ(Net().closeRecv(wire.recv), kSuccess);
}

Buffer::Buffer(void* comm, size_t bytes, unsigned seed, NcclResult* outcome)
    : comm_(comm), data_(bytes + 16) {
  for (size_t i = 0; i < data_.size(); ++i)
    data_[i] = static_cast<unsigned char>((i * 7 + i / 251 + seed) & 0xff);
  const NcclResult result = Net().regMr(comm, data_.data(), data_.size(), nccl::kPtrHost, &handle_);
  if (outcome == nullptr) {
    EXPECT_EQ(result, kSuccess) << testing::PrintToString(Lines());
  } else {
    *outcome = result;
  }
}

Buffer::Buffer(Buffer&& other) noexcept {
  *this = std::move(other);
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(comm_, other.comm_);
  std::swap(handle_, other.handle_);
  std::swap(data_, other.data_);
  return *this;
}

NcclResult Buffer::Deregister() {
  if (handle_ == nullptr) return kSuccess;
  return Net().deregMr(comm_, std::exchange(handle_, nullptr));
}

NcclResult Isend(void* comm, Buffer& buffer, size_t bytes, int tag, void** request) {
  *request = nullptr;
  return Net().isend(comm, buffer.data(), bytes, tag, buffer.handle(), nullptr, request);
}

NcclResult Irecv(void* comm, Buffer& buffer, size_t bytes, int tag, void** request) {
  void* data = buffer.data();
  void* handle = buffer.handle();
  *request = nullptr;
  return Net().irecv(comm, 1, &data, &bytes, &tag, &handle, nullptr, request);
}

void Transfer(const Wire& wire, size_t bytes, int tag) {
  Buffer from(wire.send, bytes, static_cast<unsigned>(bytes));
  Buffer to(wire.recv, bytes, static_cast<unsigned>(bytes) + 1);
  void* sending = nullptr;
  void* receiving = nullptr;
  int sent = 0, received = 0, size = -1;
  NcclResult result = kSuccess;
  Until(
      [&] {
        if (receiving == nullptr) {
          result = Irecv(wire.recv, to, bytes, tag, &receiving);
        } else if (received == 0) {
          result = Net().test(receiving, &received, &size);
        }
        if (result != kSuccess) return true;
        if (sending == nullptr) {
          result = Isend(wire.send, from, bytes, tag, &sending);
        } else if (sent == 0) {
          result = Net().test(sending, &sent, nullptr);
        }
        return result != kSuccess || (sent != 0 && received != 0);
      },
      "a message");
  EXPECT_EQ(result, kSuccess) << testing::PrintToString(Lines());
  EXPECT_EQ(size, static_cast<int>(bytes));
  EXPECT_EQ(memcmp(from.data(), to.data(), bytes), 0) << "wrong data in a message of " << bytes << " bytes";
  EXPECT_EQ(from.Deregister(), kSuccess);
  EXPECT_EQ(to.Deregister(), kSuccess);
}

NcclResult FirstErrorOfReceiver(void* recv, Buffer& buffer) {
  void* request = nullptr;
  NcclResult result = kSuccess;
  Until(
      [&] {
        int done = 0;
        result = request == nullptr ? Irecv(recv, buffer, buffer.size() - 16, 0, &request)
                                    : Net().test(request, &done, nullptr);
        if (done != 0) request = nullptr;
        return result != kSuccess;
      },
      "an error at the receiver");
  return result;
}

NcclResult FirstErrorOfSender(void* send, Buffer& buffer) {
  void* request = nullptr;
  NcclResult result = kSuccess;
  Until(
      [&] {
        int done = 0;
        result = request == nullptr ? Isend(send, buffer, buffer.size() - 16, 0, &request)
                                    : Net().test(request, &done, nullptr);
        if (done != 0) request = nullptr;
        return result != kSuccess;
      },
      "an error at the sender");
  return result;
}

std::ostream& operator<<(std::ostream& out, const Holdings& holdings) {
  return out << "descriptors " << holdings.descriptors << ", " << holdings.objects;
}

Holdings Held() {
  return {OpenDescriptors(), LiveObjects()};
}

Holdings HeldAfterWarmUp() {
  void* const ctx = Init();
  const Wire wire = Connect(ctx, ctx);
  Transfer(wire, 1000);
  Close(wire);
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
  Until(
      [] {
        const Census now = LiveObjects();
        return now.queue_pairs == 0 && now.completion_queues == 0 && now.shared_receive_queues == 0 &&
               now.memory_regions == 0;
      },
      "the objects of the first communicator to go");
  return Held();
}

void ExpectBackTo(const Holdings& start, const std::string& what) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  // Judged by the reading that the loop ended with: other threads open files for a moment.
  Holdings held = Held();
  while (!(held == start) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    held = Held();
  }
  EXPECT_EQ(held, start) << what;
}

}  // namespace sluice::fault
