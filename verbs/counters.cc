#include "verbs/counters.h"

#include <dirent.h>

#include <charconv>
#include <memory>

#include "verbs/link.h"

namespace sluice {
namespace {

constexpr uint64_t kBytesPerWord = 4;

struct CloseDirectory {
  void operator()(DIR* directory) const { closedir(directory); }
};

void ReadDirectory(const std::string& path, const std::string& prefix,
                   std::map<std::string, uint64_t, std::less<>>* values) {
  const std::unique_ptr<DIR, CloseDirectory> directory(opendir(path.c_str()));
  if (directory == nullptr) return;
  while (const dirent* entry = readdir(directory.get())) {
    const std::string name = entry->d_name;
    // lifespan is the refresh interval of the counters, not one of them.
    if (name.front() == '.' || name == "lifespan") continue;
    const std::optional<std::string> text = ReadTextFile(std::string(path).append("/").append(name), 64);
    if (!text) continue;
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (error == std::errc() && end == text->data() + text->size()) (*values)[prefix + name] = value;
  }
}

std::optional<uint64_t> Words(std::optional<uint64_t> words) {
  if (!words) return std::nullopt;
  return *words * kBytesPerWord;
}

}  // namespace

std::optional<uint64_t> PortCounters::Get(std::string_view name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) return std::nullopt;
  return found->second;
}

std::optional<uint64_t> PortCounters::TransmittedBytes() const {
  return Words(Get("port_xmit_data"));
}
std::optional<uint64_t> PortCounters::ReceivedBytes() const {
  return Words(Get("port_rcv_data"));
}

PortCounters PortCounters::Since(const PortCounters& before) const {
  constexpr uint64_t kWrap = uint64_t{1} << 32;
  PortCounters difference;
  for (const auto& [name, value] : values_) {
    const uint64_t old = before.Get(name).value_or(0);
    const bool wrapped = value < old && old >= kWrap / 2 && old < kWrap;
    difference.values_[name] = value >= old ? value - old : wrapped ? value + kWrap - old : value;
  }
  return difference;
}

PortCounters ReadPortCounters(const std::string& ibdev_path, uint8_t port) {
  PortCounters counters;
  if (ibdev_path.empty()) return counters;
  const std::string port_path = ibdev_path + "/ports/" + std::to_string(port);
  ReadDirectory(port_path + "/counters", "", &counters.values_);
  ReadDirectory(port_path + "/hw_counters", "", &counters.values_);
  ReadDirectory(ibdev_path + "/hw_counters", "device/", &counters.values_);
  return counters;
}

}  // namespace sluice
