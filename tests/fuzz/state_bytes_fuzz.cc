// Insides of kept states, and of messages between ranks; the first byte chooses. A message of a step reads back as it was written. A snapshot
// is a true one with the input's changes in it. Its hashes are as they were, or made right again. It is refused, or goes on from where it says.
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "kv/snapshot.h"
#include "model/runtime/step_message.h"

namespace dsv4 {
namespace {

constexpr uint64_t kOrigin = 42;
constexpr size_t kHeaderBytes = 72;  // kv/snapshot.h has the offsets.
constexpr size_t kPayloadHashAt = 56;
constexpr size_t kHeaderHashAt = 64;
constexpr int64_t kMostPositions = 200;

std::shared_ptr<const kv::CacheLayout> Layout() {
  static const auto layout = [] {
    auto made = std::make_shared<kv::CacheLayout>();
    made->layers = {{.ratio = 0, .overlap = false, .width = 2, .indexer_width = 0},
                    {.ratio = 4, .overlap = true, .width = 2, .indexer_width = 3},
                    {.ratio = 7, .overlap = false, .width = 2, .indexer_width = 0}};
    made->window_size = 5;
    made->window_format = made->entry_format = made->key_format = DType::kF32;
    made->max_positions = kMostPositions;
    made->max_chunk_tokens = 9;
    made->max_rewind_tokens = 3;
    made->rows_per_page = 3;
    return made;
  }();
  return layout;
}

kv::SequenceState NewState() {
  auto state = kv::SequenceState::Create(Layout(), HostMemory(), nullptr);
  DSV4_CHECK(state.has_value());
  return std::move(*state);
}

void Append(kv::SequenceState& state, int64_t num_tokens) {
  DSV4_CHECK(state.BeginAppend(num_tokens).ok());
  state.CommitAppend();
}

// The bytes of a sequence of `length` tokens, of which some can be taken back.
std::vector<std::byte> Bytes(int64_t length) {
  kv::SequenceState state = NewState();
  while (state.length() < length) Append(state, std::min<int64_t>(length - state.length(), 9));
  auto bytes = state.Snapshot()->Serialize(kOrigin, length % 4);
  DSV4_CHECK(bytes.has_value());
  return std::move(*bytes);
}

void Repair(std::vector<std::byte>& bytes) {
  if (bytes.size() < kHeaderBytes) return;
  const uint64_t payload = XXH3_64bits(bytes.data() + kHeaderBytes, bytes.size() - kHeaderBytes);
  std::memcpy(bytes.data() + kPayloadHashAt, &payload, sizeof payload);
  const uint64_t header = XXH3_64bits(bytes.data(), kHeaderHashAt);
  std::memcpy(bytes.data() + kHeaderHashAt, &header, sizeof header);
}

bool ReadSnapshot(const std::vector<std::byte>& bytes) {
  const auto snapshot = kv::Snapshot::Deserialize(bytes, kOrigin, Layout(), HostMemory(), nullptr);
  if (!snapshot) {
    DSV4_CHECK(!snapshot.error().message().empty());
    return false;
  }
  DSV4_CHECK(snapshot->length() >= 0 && snapshot->length() <= kMostPositions);
  kv::SequenceState state = NewState();
  DSV4_CHECK(state.Restore(*snapshot).ok());
  if (state.length() < kMostPositions) Append(state, 1);
  const auto again = snapshot->Serialize(kOrigin);
  DSV4_CHECK(again.has_value() && again->size() <= bytes.size());
  return true;
}

// Three bytes a change: where (two of them), and the value.
bool Snapshot(std::span<const uint8_t> input) {
  if (input.size() < 2) return false;
  std::vector<std::byte> bytes = Bytes(input[0] % (kMostPositions + 1));
  const uint8_t how = input[1];
  input = input.subspan(2);
  for (; input.size() >= 3; input = input.subspan(3)) {
    const size_t at = input[0] | static_cast<size_t>(input[1]) << 8U;
    // The header is most of what can be said wrong.
    bytes[at % (how & 1 ? kHeaderBytes : bytes.size())] = std::byte{input[2]};
  }
  if (how & 2) bytes.resize(bytes.size() - std::min<size_t>(bytes.size(), how >> 4U));
  if (how & 4) bytes.resize(bytes.size() + (how >> 4U));
  if (how & 8) Repair(bytes);
  return ReadSnapshot(bytes);
}

bool Message(std::span<const uint8_t> input) {
  const auto message = model::DecodeStepMessage(std::as_bytes(input));
  if (!message) {
    DSV4_CHECK(message.error().code() == StatusCode::kDataLoss && !message.error().message().empty());
    return false;
  }
  const std::vector<std::byte> written = model::Encode(*message);
  DSV4_CHECK(written.size() == input.size());
  const auto again = model::DecodeStepMessage(written);
  DSV4_CHECK(again.has_value() && again->kind == message->kind &&
             again->chunks.size() == message->chunks.size());
  for (size_t i = 0; i < again->chunks.size(); ++i) {
    DSV4_CHECK(again->chunks[i].tokens == message->chunks[i].tokens);
    DSV4_CHECK(again->chunks[i].length == message->chunks[i].length);
  }
  return true;
}

}  // namespace
}  // namespace dsv4

extern "C" bool FuzzInputIsAccepted(const uint8_t* data, size_t size) {
  if (size == 0) return false;
  const std::span<const uint8_t> input(data + 1, size - 1);
  return data[0] % 2 == 0 ? dsv4::Snapshot(input) : dsv4::Message(input);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)FuzzInputIsAccepted(data, size);
  return 0;
}
