// Encoding of a step and of state changes as bytes from rank 0 to the others.
#include "model/runtime/step_message.h"

#include <fmt/format.h>

#include <cstring>
#include <type_traits>

#include "base/text.h"

namespace dsv4::model {
namespace {

class Writer {
 public:
  template <typename T>
  void Put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto bytes = std::as_bytes(std::span(&value, 1));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  std::vector<std::byte> Take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// Reads what Writer wrote; after the first byte that is missing everything reads as 0.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  T Get() {
    T value = {};
    if (bytes_.size() < sizeof(T)) {
      ok_ = false;
      return value;
    }
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_ = bytes_.subspan(sizeof(T));
    return value;
  }
  // A count of things that take at least `size` bytes each.
  uint64_t Count(size_t size) {
    const auto count = Get<uint64_t>();
    if (count <= bytes_.size() / size) return count;
    ok_ = false;
    return 0;
  }
  bool done() const { return ok_ && bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

}  // namespace

std::vector<std::byte> Encode(const StepMessage& message) {
  Writer writer;
  writer.Put(message.kind);
  writer.Put<uint64_t>(message.events.size());
  for (const kv::StateEvent& event : message.events) writer.Put(event);
  writer.Put<uint64_t>(message.chunks.size());
  for (const ChunkMessage& chunk : message.chunks) {
    writer.Put(chunk.state);
    writer.Put(chunk.length);
    writer.Put(chunk.logits);
    writer.Put(chunk.follows);
    writer.Put<uint8_t>(chunk.slots_later ? 1 : 0);
    writer.Put(chunk.num_drafts);
    writer.Put(chunk.num_following);
    writer.Put(chunk.exact_from);
    writer.Put<uint64_t>(chunk.tokens.size());
    for (const int32_t token : chunk.tokens) writer.Put(token);
  }
  return writer.Take();
}

Result<StepMessage> DecodeStepMessage(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  StepMessage message;
  const auto kind = reader.Get<uint8_t>();
  message.kind = static_cast<StepKind>(kind);
  for (uint64_t n = reader.Count(sizeof(kv::StateEvent)); n > 0; --n) {
    message.events.push_back(reader.Get<kv::StateEvent>());
  }
  for (uint64_t n = reader.Count(7 * sizeof(uint64_t) + 2); n > 0; --n) {
    ChunkMessage chunk;
    chunk.state = reader.Get<uint64_t>();
    chunk.length = reader.Get<int64_t>();
    chunk.logits = reader.Get<uint8_t>();
    chunk.follows = reader.Get<int64_t>();
    chunk.slots_later = reader.Get<uint8_t>() != 0;
    chunk.num_drafts = reader.Get<int64_t>();
    chunk.num_following = reader.Get<int64_t>();
    chunk.exact_from = reader.Get<int64_t>();
    for (uint64_t t = reader.Count(sizeof(int32_t)); t > 0; --t)
      chunk.tokens.push_back(reader.Get<int32_t>());
    message.chunks.push_back(std::move(chunk));
  }
  if (reader.done() && kind <= static_cast<uint8_t>(StepKind::kLeave)) return message;
  return Error(DataLoss(fmt::format("step of rank 0: {} that are no step", Counted(bytes.size(), "byte"))));
}

}  // namespace dsv4::model
