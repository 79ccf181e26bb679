// Reader of the backend's environment variables.
#include "backend/cuda/cuda_variables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <span>
#include <string_view>

namespace dsv4::backend {
namespace {

class Reader {
 public:
  // Index of the variable's value among `values`, or `fallback` where it has none.
  size_t Choice(const char* name, std::span<const std::string_view> values, size_t fallback) {
    const std::string_view text = Text(name);
    if (text.empty()) return fallback;
    const auto found = std::ranges::find(values, text);
    if (found == values.end()) Refuse(name, fmt::format("one of {}", fmt::join(values, ", ")));
    return static_cast<size_t>(found - values.begin());
  }
  bool Switch(const char* name, bool fallback) {
    constexpr std::string_view kValues[] = {"0", "1"};
    return Choice(name, kValues, fallback ? 1 : 0) == 1;
  }
  size_t Number(const char* name, size_t least, size_t most) {
    const std::string_view text = Text(name);
    if (text.empty()) return 0;
    size_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size() || number < least || number > most)
      Refuse(name, fmt::format("{} to {}", least, most));
    return number;
  }
  const Status& status() const { return status_; }

 private:
  static std::string_view Text(const char* name) {
    const char* const value = std::getenv(name);
    return value == nullptr ? std::string_view() : value;
  }
  void Refuse(const char* name, const std::string& wanted) {
    if (status_.ok())
      status_ = InvalidArgument(fmt::format("{}: got \"{}\", wanted {}", name, Text(name), wanted));
  }

  Status status_;
};

}  // namespace

Result<CudaVariables> ReadCudaVariables() {
  constexpr std::string_view kReplay[] = {"0", "1", "check"};
  constexpr std::string_view kBlockScaled[] = {"off", "fp8", "fp4"};
  constexpr std::string_view kFp8Products[] = {"off", "many", "all"};
  constexpr size_t kLeastSharedKilobytes = 48;
  Reader reader;
  CudaVariables variables;
  variables.synchronous = reader.Switch("DSV4_CUDA_SYNC", false);
  variables.explain = reader.Switch("DSV4_CUDA_EXPLAIN", false);
  variables.graphs = reader.Switch("DSV4_CUDA_GRAPHS", true);
  variables.overlap = reader.Switch("DSV4_CUDA_OVERLAP", true);
  const size_t replay = reader.Choice("DSV4_CUDA_REPLAY", kReplay, 1);
  variables.replay = replay != 0;
  variables.check_replays = replay == 2;
  variables.packed_exchange = reader.Switch("DSV4_CUDA_PACKED_EXCHANGE", true);
  variables.share_devices = reader.Switch("DSV4_CUDA_SHARE_DEVICES", false);
  variables.block_scaled =
      static_cast<cuda::BlockScaledMode>(reader.Choice("DSV4_CUDA_BLOCK_SCALED", kBlockScaled, 0));
  variables.fp8_products =
      static_cast<cuda::Fp8Products>(reader.Choice("DSV4_CUDA_FP8_PRODUCTS", kFp8Products, 0));
  variables.most_shared_bytes = reader.Number("DSV4_CUDA_SHARED_KB", kLeastSharedKilobytes, 1024) * 1024;
  DSV4_TRY(reader.status());
  return variables;
}

bool DevicesAreShared() {
  const Result<CudaVariables> variables = ReadCudaVariables();
  return variables && variables->share_devices;
}

}  // namespace dsv4::backend
