// Runs a fuzz target without libFuzzer: on every seed file as it is, cut at many places, and damaged in many
// ways, always the same. So the tests, and the sanitizer presets, try hostile input with every compiler;
// libFuzzer searches further.
//
//   NAME_replay FILE_OR_FOLDER...
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
// A target may define it to say which inputs it accepts; seeds then must be among them, or they would reach
// nothing.
extern "C" __attribute__((weak)) bool FuzzInputIsAccepted(const uint8_t* data, size_t size);

namespace {

constexpr int kNumCuts = 200;
constexpr int kNumDamages = 1000;

class SplitMix {
 public:
  explicit SplitMix(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15U);
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31U);
  }
  size_t Below(size_t bound) { return static_cast<size_t>(Next() % bound); }

 private:
  uint64_t state_;
};

// A copy on the heap of exactly this size, so that AddressSanitizer sees the first byte read past it.
void Run(const std::string& input) {
  const std::vector<uint8_t> exact(input.begin(), input.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

std::string Damage(std::string text, SplitMix& random) {
  static constexpr char kInteresting[] = {'\0', '\x7F', '\x80', '\xFF', '0', '9', '-', '"',
                                          '{',  '}',    '[',    ']',    ',', ':', '<', '|'};
  const size_t count = 1 + random.Below(4);
  for (size_t i = 0; i < count && !text.empty(); ++i) {
    const size_t place = random.Below(text.size());
    const size_t length = 1 + random.Below(std::min<size_t>(16, text.size() - place));
    switch (random.Below(5)) {
      case 0:
        text[place] = static_cast<char>(text[place] ^ static_cast<char>(1U << random.Below(8)));
        break;
      case 1:
        text[place] = kInteresting[random.Below(std::size(kInteresting))];
        break;
      case 2:
        text.erase(place, length);
        break;
      case 3:
        text.insert(random.Below(text.size() + 1), text.substr(place, length));
        break;
      default:
        text.insert(place, length, kInteresting[random.Below(std::size(kInteresting))]);
    }
  }
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::filesystem::path> seeds;
  for (int i = 1; i < argc; ++i) {
    if (!std::filesystem::is_directory(argv[i])) {
      seeds.emplace_back(argv[i]);
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) seeds.push_back(entry.path());
  }
  std::sort(seeds.begin(), seeds.end());
  for (const std::filesystem::path& seed : seeds) {
    std::ifstream file(seed, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (!file || text.empty()) {
      std::fprintf(stderr, "%s: cannot be read, or is empty\n", seed.c_str());
      return 1;
    }
    std::printf("%s\n", seed.c_str());
    Run(text);
    if (FuzzInputIsAccepted != nullptr &&
        !FuzzInputIsAccepted(reinterpret_cast<const uint8_t*>(text.data()), text.size())) {
      std::fprintf(stderr, "%s: the target does not accept its own seed\n", seed.c_str());
      return 1;
    }
    for (size_t cut = 0; cut < kNumCuts; ++cut) Run(text.substr(0, cut * text.size() / kNumCuts));
    SplitMix random(text.size());
    for (int i = 0; i < kNumDamages; ++i) Run(Damage(text, random));
  }
  if (seeds.empty()) std::fprintf(stderr, "no seed files given\n");
  return seeds.empty() ? 1 : 0;
}
