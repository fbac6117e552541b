// Bounds-checked little-endian encoding of link frames. One Fields() template per frame serves both
// directions:
//
//   struct Bye { uint32_t path = 0; template <class A> void Fields(A& a) { a(path); } };
//   std::vector<std::byte> bytes = Encode(Bye{7});
//   std::optional<Bye> bye = Decode<Bye>(bytes);     // empty: truncated, trailing bytes, or over a limit
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace sluice {

inline constexpr size_t kMaxFrameBytes = 4096;  // payload; a longer frame is an attack or a defect

class Encoder {
 public:
  template <typename... T>
  void operator()(T&... fields) {
    (Put(fields), ...);
  }
  std::vector<std::byte> Take() { return std::move(bytes_); }

 private:
  template <typename T>
  void Put(T& field) {
    if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
      const auto* raw = reinterpret_cast<const std::byte*>(&field);
      bytes_.insert(bytes_.end(), raw, raw + sizeof(T));
    } else {
      field.Fields(*this);
    }
  }
  template <typename T, size_t n>
  void Put(std::array<T, n>& field) {
    for (T& element : field) Put(element);
  }
  template <typename T>
  void Put(std::vector<T>& field) {
    auto count = static_cast<uint16_t>(field.size());
    Put(count);
    for (T& element : field) Put(element);
  }
  void Put(std::string& field) {
    auto count = static_cast<uint16_t>(std::min<size_t>(field.size(), 1024));
    Put(count);
    const auto* raw = reinterpret_cast<const std::byte*>(field.data());
    bytes_.insert(bytes_.end(), raw, raw + count);
  }

  std::vector<std::byte> bytes_;
};

class Decoder {
 public:
  explicit Decoder(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename... T>
  void operator()(T&... fields) {
    (Get(fields), ...);
  }
  // All bytes were used and none was missing.
  bool Complete() const { return ok_ && bytes_.empty(); }

 private:
  template <typename T>
  void Get(T& field) {
    if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
      if (!Need(sizeof(T))) return;
      memcpy(&field, bytes_.data(), sizeof(T));
      bytes_ = bytes_.subspan(sizeof(T));
    } else {
      field.Fields(*this);
    }
  }
  template <typename T, size_t n>
  void Get(std::array<T, n>& field) {
    for (T& element : field) Get(element);
  }
  template <typename T>
  void Get(std::vector<T>& field) {
    uint16_t count = 0;
    Get(count);
    if (!Need(count)) return;  // each element takes at least a byte: bounds the allocation by the frame
    field.resize(count);
    for (T& element : field) Get(element);
  }
  void Get(std::string& field) {
    uint16_t count = 0;
    Get(count);
    if (!Need(count)) return;
    field.assign(reinterpret_cast<const char*>(bytes_.data()), count);
    bytes_ = bytes_.subspan(count);
  }
  bool Need(size_t count) {
    if (bytes_.size() < count) ok_ = false;
    return ok_;
  }

  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

template <typename Frame>
std::vector<std::byte> Encode(Frame frame) {
  Encoder encoder;
  frame.Fields(encoder);
  return encoder.Take();
}

template <typename Frame>
std::optional<Frame> Decode(std::span<const std::byte> bytes) {
  Frame frame;
  Decoder decoder(bytes);
  frame.Fields(decoder);
  if (!decoder.Complete()) return std::nullopt;
  return frame;
}

}  // namespace sluice
