// Any bytes as a JSON text, for each of our readers. A text that one takes the other takes too, and what is written of it reads back as the
// same. Lists of tokens mean what lists of integers mean.
#include <array>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/json.h"
#include "chat/json_value.h"

namespace {

using dsv4::chat::JsonDialect;
using dsv4::chat::JsonLimits;
using dsv4::chat::JsonValue;
using dsv4::chat::ReadJson;
using dsv4::chat::TakeJson;
using dsv4::chat::WriteJson;

// Below kMaxJsonDepth, which the other counts in another way.
constexpr int kDepth = 400;
constexpr std::array<std::string_view, 1> kTokenLists = {"prompt"};

void CheckWritten(const JsonValue& value, JsonDialect dialect) {
  const std::string written = WriteJson(value);
  const auto again = ReadJson(written, "written", dialect);
  DSV4_CHECK(again.has_value()) << written;
  DSV4_CHECK(WriteJson(*again) == written) << written;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto plain = ReadJson(text, "fuzz");
  const auto taken = TakeJson(std::string(text), "fuzz");
  DSV4_CHECK(plain.has_value() == taken.has_value());
  if (plain) {
    DSV4_CHECK(*plain == *taken);
    CheckWritten(*plain, JsonDialect::kPython);  // A number beyond doubles becomes Infinity.
  } else {
    DSV4_CHECK(!plain.error().message().empty());
  }
  const auto python = ReadJson(text, "fuzz", JsonDialect::kPython);
  DSV4_CHECK(python.has_value() || !plain.has_value());
  if (python) CheckWritten(*python, JsonDialect::kPython);

  const JsonLimits limits{.token_lists = kTokenLists};
  const auto packed = ReadJson(text, "fuzz", JsonDialect::kRfc8259, limits);
  DSV4_CHECK(packed.has_value() || !plain.has_value());
  if (packed && plain) {
    DSV4_CHECK(WriteJson(*packed) == WriteJson(*plain)) << text;
  }

  const auto tree = dsv4::ParseJson(text, "fuzz", kDepth);
  if (!tree) {
    DSV4_CHECK(!tree.error().message().empty());
    return 0;
  }
  // nlohmann passes over a byte order mark.
  DSV4_CHECK(plain.has_value() || text.starts_with("\xEF\xBB\xBF")) << text;
  const auto again = dsv4::ParseJson(tree->dump(), "written", kDepth);
  DSV4_CHECK(again.has_value() && again->dump() == tree->dump()) << text;
  return 0;
}

extern "C" bool FuzzInputIsAccepted(const uint8_t* data, size_t size) {
  return ReadJson({reinterpret_cast<const char*>(data), size}, "seed").has_value();
}
