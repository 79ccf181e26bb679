// Bodies of requests that come compressed: the first byte names the coding and the length of the pieces in
// which the rest arrives. Decoding ends, appends no more at once than it says, and what was read does not
// depend on the pieces.
#include <array>
#include <string>
#include <string_view>

#include "base/check.h"
#include "server/http/body_decoder.h"

namespace {

using dsv4::server::BodyDecoder;

constexpr std::array<std::string_view, 4> kCodings = {"gzip", "deflate", "zstd", "identity"};
constexpr size_t kMostBytes = size_t{4} << 20;

// Empty when it is damaged or too long.
std::string Decoded(std::string_view coding, std::string_view bytes, size_t piece) {
  auto decoder = BodyDecoder::Make(coding);
  DSV4_CHECK(decoder.has_value());
  if (*decoder == nullptr) return std::string(bytes);
  std::string body;
  while (!bytes.empty()) {
    std::string_view part = bytes.substr(0, piece);
    bytes.remove_prefix(part.size());
    for (;;) {
      const size_t before = body.size();
      const size_t left = part.size();
      const dsv4::Status status = (*decoder)->Decode(part, body);
      DSV4_CHECK(body.size() - before <= BodyDecoder::kMostAtOnce);
      if (!status.ok() || body.size() > kMostBytes) return "";
      const bool full = body.size() - before == BodyDecoder::kMostAtOnce;
      if (part.empty() && !full) break;
      DSV4_CHECK(full || part.size() < left || body.size() > before) << coding << " stands still";
    }
  }
  return (*decoder)->whole() ? body : "";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view coding = kCodings[data[0] % kCodings.size()];
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t piece = 1 + data[0] / kCodings.size();
  const std::string whole = Decoded(coding, bytes, bytes.size() + 1);
  DSV4_CHECK(Decoded(coding, bytes, piece) == whole) << coding << " in pieces of " << piece;
  return 0;
}
