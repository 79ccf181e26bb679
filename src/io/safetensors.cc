// Parser of a safetensors header by streaming JSON: names, dtypes, shapes and extents that cover the file
// exactly.
#include "io/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "base/json.h"
#include "base/text.h"

namespace dsv4::io {
namespace {

// Bits of one element for every dtype of the format, so that sizes are checked even for unused tensors.
std::optional<int64_t> ElementBits(std::string_view dtype_name) {
  static constexpr std::array<std::pair<std::string_view, int64_t>, 22> kBits = {
      {{"F64", 64},        {"I64", 64},    {"U64", 64},    {"C64", 64},    {"F32", 32},    {"I32", 32},
       {"U32", 32},        {"F16", 16},    {"BF16", 16},   {"I16", 16},    {"U16", 16},    {"I8", 8},
       {"U8", 8},          {"BOOL", 8},    {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
       {"F8_E5M2FNUZ", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4}}};
  for (const auto& [name, bits] : kBits) {
    if (name == dtype_name) return bits;
  }
  return std::nullopt;
}

// A SAX reader: the DOM would silently keep one of two equal keys. Subclasses see values with their path
// depth and stop the parse by Fail.
class JsonReader : public nlohmann::json_sax<Json> {
 public:
  const std::string& fault() const { return fault_; }

  bool null() override { return Fail("null"); }
  bool boolean(bool) override { return Fail("a boolean"); }
  bool number_integer(number_integer_t value) override { return Fail(fmt::format("the number {}", value)); }
  bool number_unsigned(number_unsigned_t value) override { return Fail(fmt::format("the number {}", value)); }
  bool number_float(number_float_t, const string_t& text) override { return Fail("the number " + text); }
  bool string(string_t& value) override { return Fail(fmt::format("the string \"{}\"", Shorten(value))); }
  bool binary(binary_t&) override { return Fail("binary data"); }
  bool start_object(size_t) override { return Fail("an object"); }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return Fail("an array"); }
  bool end_array() override { return true; }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    if (fault_.empty())
      fault_ = fmt::format("not valid JSON at byte {}: {}", position, JsonFault(error.what()));
    return false;
  }

  static std::string Shorten(std::string_view text) {
    constexpr size_t kMax = 120;
    return text.size() <= kMax ? std::string(text) : std::string(text.substr(0, kMax)) + "...";
  }

 protected:
  // The reader's position, for messages: "tensor layers.0.attn.wkv.weight, key shape".
  virtual std::string Where() const = 0;
  bool Fail(std::string_view got) { return Stop(fmt::format("{}: {} is not allowed here", Where(), got)); }
  bool Stop(std::string message) {
    if (fault_.empty()) fault_ = std::move(message);
    return false;
  }

 private:
  std::string fault_;
};

struct HeaderEntry {
  StoredTensor tensor;
  std::optional<std::pair<uint64_t, uint64_t>> offsets;
  bool has_shape = false;
};

class HeaderReader final : public JsonReader {
 public:
  std::vector<HeaderEntry>& entries() { return entries_; }

  bool start_object(size_t) override {
    switch (section_) {
      case kStart:
        section_ = kRoot;
        return true;
      case kRootValue:
        section_ = kTensor;
        return true;
      case kMetadataValue:
        section_ = kMetadata;
        return true;
      default:
        return Fail("an object");
    }
  }
  bool end_object() override {
    if (section_ == kTensor) {
      const HeaderEntry& entry = entries_.back();
      if (entry.tensor.dtype_name.empty()) return Stop(Where() + ": dtype is missing");
      if (!entry.has_shape) return Stop(Where() + ": shape is missing");
      if (!entry.offsets) return Stop(Where() + ": data_offsets is missing");
    }
    section_ = section_ == kRoot ? kEnd : kRoot;
    return true;
  }
  bool key(string_t& name) override {
    if (section_ == kRoot) {
      if (!names_.insert(name).second) return Stop(fmt::format("tensor {}: name used twice", Shorten(name)));
      if (name == "__metadata__") {
        section_ = kMetadataValue;
        return true;
      }
      entries_.emplace_back();
      entries_.back().tensor.name = name;
      section_ = kRootValue;
      return true;
    }
    if (section_ == kMetadata) {
      section_ = kMetadataText;
      return true;
    }
    HeaderEntry& entry = entries_.back();
    key_ = name;
    if (name == "dtype" && entry.tensor.dtype_name.empty()) {
      section_ = kDtype;
    } else if (name == "shape" && !entry.has_shape) {
      section_ = kShapeValue;
    } else if (name == "data_offsets" && !entry.offsets) {
      section_ = kOffsetsValue;
    } else {
      return Stop(fmt::format("tensor {}: key {} is unknown or used twice", Shorten(entry.tensor.name),
                              Shorten(name)));
    }
    return true;
  }
  bool string(string_t& value) override {
    if (section_ == kMetadataText) {
      section_ = kMetadata;
      return true;
    }
    if (section_ == kDtype && !value.empty()) {
      entries_.back().tensor.dtype_name = Shorten(value);
      entries_.back().tensor.dtype = DTypeFromName(value);
      section_ = kTensor;
      return true;
    }
    return JsonReader::string(value);
  }
  bool start_array(size_t) override {
    if (section_ != kShapeValue && section_ != kOffsetsValue) return Fail("an array");
    section_ = section_ == kShapeValue ? kShape : kOffsets;
    numbers_.clear();
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (section_ != kShape && section_ != kOffsets) return JsonReader::number_unsigned(value);
    if (numbers_.size() == kMaxFileRank)
      return Stop(fmt::format("{}: more than {} numbers", Where(), kMaxFileRank));
    if (value > static_cast<number_unsigned_t>(INT64_MAX)) return JsonReader::number_unsigned(value);
    numbers_.push_back(static_cast<int64_t>(value));
    return true;
  }
  bool end_array() override {
    HeaderEntry& entry = entries_.back();
    if (section_ == kShape) {
      entry.tensor.dims = numbers_;
      entry.has_shape = true;
    } else {
      if (numbers_.size() != 2)
        return Stop(fmt::format("{}: {} numbers, wanted 2", Where(), numbers_.size()));
      entry.offsets = {static_cast<uint64_t>(numbers_[0]), static_cast<uint64_t>(numbers_[1])};
    }
    section_ = kTensor;
    return true;
  }

 protected:
  std::string Where() const override {
    switch (section_) {
      case kStart:
        return "header";
      case kRoot:
      case kEnd:
        return "header, top level";
      case kMetadataValue:
      case kMetadata:
      case kMetadataText:
        return "__metadata__";
      case kRootValue:
      case kTensor:
        return "tensor " + Shorten(entries_.back().tensor.name);
      default:
        return fmt::format("tensor {}, key {}", Shorten(entries_.back().tensor.name), key_);
    }
  }

 private:
  enum Section : uint8_t {
    kStart,
    kRoot,
    kRootValue,
    kMetadataValue,
    kMetadata,
    kMetadataText,
    kTensor,
    kDtype,
    kShapeValue,
    kShape,
    kOffsetsValue,
    kOffsets,
    kEnd
  };
  Section section_ = kStart;
  std::string key_;
  std::vector<int64_t> numbers_;
  std::vector<HeaderEntry> entries_;
  std::unordered_set<std::string> names_;
};

// Shape times dtype against the offsets, and the offsets against the data.
Status CheckExtent(const HeaderEntry& entry, uint64_t data_size, std::string_view what) {
  const StoredTensor& tensor = entry.tensor;
  const auto [begin, end] = *entry.offsets;
  if (begin > end) {
    return DataLoss(
        fmt::format("{}: tensor {}: data_offsets [{}, {}] run backwards", what, tensor.name, begin, end));
  }
  if (end > data_size) {
    return DataLoss(
        fmt::format("{}: tensor {}: data_offsets [{}, {}] end outside the {} of data; is the file truncated?",
                    what, tensor.name, begin, end, Counted(data_size, "byte")));
  }
  int64_t elements = 1;
  bool overflow = false;
  for (const int64_t dim : tensor.dims) overflow |= __builtin_mul_overflow(elements, dim, &elements);
  const std::optional<int64_t> bits = ElementBits(tensor.dtype_name);
  int64_t total_bits = 0;
  overflow |= __builtin_mul_overflow(elements, bits.value_or(1), &total_bits);
  if (overflow) {
    return DataLoss(fmt::format("{}: tensor {}: shape {} of {} overflows 64 bits", what, tensor.name,
                                tensor.ShapeString(), tensor.dtype_name));
  }
  if (bits && (total_bits % 8 != 0 || static_cast<uint64_t>(total_bits / 8) != end - begin)) {
    return DataLoss(fmt::format("{}: tensor {}: shape {} of {} takes {} bits, data_offsets [{}, {}] hold {}",
                                what, tensor.name, tensor.ShapeString(), tensor.dtype_name, total_bits, begin,
                                end, Counted(end - begin, "byte")));
  }
  return {};
}

// The tensors must cover [0, data_size) exactly once, whatever their order in the header.
Status CheckCoverage(const std::vector<HeaderEntry>& entries, uint64_t data_size, std::string_view what) {
  std::vector<size_t> order(entries.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return entries[a].offsets < entries[b].offsets; });
  uint64_t covered = 0;
  std::string_view previous = "the header";
  for (const size_t i : order) {
    const auto [begin, end] = *entries[i].offsets;
    if (begin < covered) {
      return DataLoss(fmt::format("{}: tensor {}: begins at data byte {}, inside tensor {} which ends at {}",
                                  what, entries[i].tensor.name, begin, previous, covered));
    }
    if (begin > covered) {
      return DataLoss(
          fmt::format("{}: tensor {}: begins at data byte {}, but {} ends at {}: the format forbids gaps",
                      what, entries[i].tensor.name, begin, previous, covered));
    }
    covered = end;
    previous = entries[i].tensor.name;
  }
  if (covered != data_size) {
    return DataLoss(
        fmt::format("{}: {} of data, the tensors cover {}", what, Counted(data_size, "byte"), covered));
  }
  return {};
}

class IndexReader final : public JsonReader {
 public:
  std::vector<IndexEntry> entries;
  bool has_weight_map = false;

  bool start_object(size_t) override { return Enter('{'); }
  bool start_array(size_t) override { return Enter('['); }
  bool end_object() override { return Leave(); }
  bool end_array() override { return Leave(); }
  bool key(string_t& name) override {
    if (depth_ == 1) {
      in_map_ = name == "weight_map";
      if (in_map_ && std::exchange(has_weight_map, true)) return Stop("key weight_map used twice");
    } else if (in_map_) {
      if (!names_.insert(name).second) return Stop(fmt::format("tensor {}: name used twice", Shorten(name)));
      tensor_ = name;
    }
    return true;
  }
  bool string(string_t& value) override {
    if (!in_map_) return depth_ > 0 || JsonReader::string(value);
    if (depth_ != 2) return JsonReader::string(value);
    // A plain name: anything else could leave the checkpoint's directory.
    if (!value.ends_with(".safetensors") ||
        value.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos || value.starts_with('.')) {
      return Stop(fmt::format("tensor {}: file \"{}\" is not a plain *.safetensors name", Shorten(tensor_),
                              Shorten(value)));
    }
    entries.push_back({tensor_, value});
    return true;
  }
  bool null() override { return Skip("null"); }
  bool boolean(bool) override { return Skip("a boolean"); }
  bool number_integer(number_integer_t) override { return Skip("a number"); }
  bool number_unsigned(number_unsigned_t) override { return Skip("a number"); }
  bool number_float(number_float_t, const string_t&) override { return Skip("a number"); }

 protected:
  std::string Where() const override {
    if (!in_map_) return "top level";
    return tensor_.empty() ? "weight_map" : "weight_map, tensor " + Shorten(tensor_);
  }

 private:
  bool Enter(char bracket) {
    if (depth_ == 0 && bracket == '[') return Fail("an array");
    if (in_map_ && (depth_ != 1 || bracket != '{')) return Fail(bracket == '{' ? "an object" : "an array");
    ++depth_;
    return true;
  }
  bool Leave() {
    if (--depth_ == 1) in_map_ = false;
    return true;
  }
  // Other sections (metadata) may hold anything; weight_map holds strings only.
  bool Skip(std::string_view got) { return (depth_ > 0 && !in_map_) || Fail(got); }

  int depth_ = 0;
  bool in_map_ = false;
  std::string tensor_;
  std::unordered_set<std::string> names_;
};

}  // namespace

std::string StoredTensor::ShapeString() const { return fmt::format("[{}]", fmt::join(dims, ", ")); }

Result<std::vector<StoredTensor>> ParseSafetensors(std::span<const std::byte> file_bytes,
                                                   std::string_view what) {
  constexpr size_t kLengthBytes = 8;
  if (file_bytes.size() < kLengthBytes) {
    return Error(DataLoss(
        fmt::format("{}: {}, too short for a safetensors header", what, Counted(file_bytes.size(), "byte"))));
  }
  std::array<unsigned char, kLengthBytes> length_bytes;
  std::memcpy(length_bytes.data(), file_bytes.data(), kLengthBytes);
  uint64_t header_size = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) header_size |= uint64_t{length_bytes[i]} << (8 * i);
  if (header_size > kMaxHeaderBytes) {
    return Error(
        DataLoss(fmt::format("{}: header length {}, at most {} are allowed; is this a safetensors file?",
                             what, Counted(header_size, "byte"), kMaxHeaderBytes)));
  }
  if (header_size > file_bytes.size() - kLengthBytes) {
    return Error(DataLoss(fmt::format("{}: header length {}, the file ends after {}; is it truncated?", what,
                                      Counted(header_size, "byte"), file_bytes.size() - kLengthBytes)));
  }
  const auto* header = reinterpret_cast<const char*>(file_bytes.data() + kLengthBytes);
  const std::span<const std::byte> data = file_bytes.subspan(kLengthBytes + header_size);

  DSV4_TRY(CheckZeroBytes({header, header_size}, fmt::format("{}: header", what)));
  HeaderReader reader;
  if (!Json::sax_parse(header, header + header_size, &reader)) {
    return Error(InvalidArgument(fmt::format("{}: header: {}", what, reader.fault())));
  }
  for (const HeaderEntry& entry : reader.entries()) DSV4_TRY(CheckExtent(entry, data.size(), what));
  DSV4_TRY(CheckCoverage(reader.entries(), data.size(), what));

  std::vector<StoredTensor> tensors;
  tensors.reserve(reader.entries().size());
  for (HeaderEntry& entry : reader.entries()) {
    entry.tensor.bytes = data.subspan(entry.offsets->first, entry.offsets->second - entry.offsets->first);
    tensors.push_back(std::move(entry.tensor));
  }
  return tensors;
}

Result<std::vector<IndexEntry>> ParseSafetensorsIndex(std::string_view json, std::string_view what) {
  DSV4_TRY(CheckZeroBytes(json, what));
  IndexReader reader;
  if (!Json::sax_parse(json.begin(), json.end(), &reader)) {
    return Error(InvalidArgument(fmt::format("{}: {}", what, reader.fault())));
  }
  if (!reader.has_weight_map) return Error(InvalidArgument(fmt::format("{}: weight_map is missing", what)));
  return std::move(reader.entries);
}

}  // namespace dsv4::io
