// States that servers share (docs/fleet.md): seconds to write one, to find it and to read it back, by two
// PrefixDisks of one directory.
//
//   shared_states_bench DIR [TOKENS] [SHAPE] [ROUNDS]
//     DIR     on the storage to measure; a directory of its own is made there and removed
//     TOKENS  of the prompt, 32768 without;  SHAPE flash (without), pro, mini and others of `synthetic:`;  ROUNDS 5
// The state has random rows, in host memory. Before a file is read, the system is told to forget its pages,
// so that a disk is read and not memory. A tmpfs has nothing else. It prints medians, and the rate at which a
// machine reads the prompt itself in the same time. A slower one gains.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bench/must.h"
#include "engine/prefix_disk.h"
#include "kv/random_rows.h"
#include "model/arch/architecture.h"
#include "model/config/cache_geometry.h"
#include "model/synthetic/synthetic_shape.h"

namespace dsv4::bench {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void ForgetPages(const fs::path& directory) {
  for (const auto& entry : fs::directory_iterator(directory)) {
    const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) continue;
    if (::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) != 0) Die("posix_fadvise");
    ::close(file);
  }
}

// Until the load is done; whether it brought the state.
bool Await(engine::PrefixDisk& disk, const std::vector<int32_t>& prompt) {
  const auto load = disk.Find(0, prompt, 0);
  if (load == nullptr) Die("the disk cannot be asked");
  while (!disk.IsDone(*load)) disk.WaitForLoad(std::chrono::milliseconds(10));
  return disk.Take(*load).has_value();
}

void Run(const std::string& parent, int64_t num_tokens, const std::string& shape, int rounds) {
  const auto config = Must(model::ParseModelConfig(Must(model::SyntheticConfig({.shape = shape})), shape));
  const auto layout = std::make_shared<kv::CacheLayout>(model::CacheGeometry(
      config, config.layers, model::Numerics::kRelease, model::CacheRows::kPacked, 512, 64));
  const fs::path directory = fs::path(parent) / fmt::format("shared_states_bench.{}", ::getpid());
  const auto open = [&] {
    return Must(engine::PrefixDisk::Open(
        {.directory = directory, .max_bytes = int64_t{1} << 50, .origin = [] { return uint64_t{1}; }},
        [&](std::span<const std::byte> bytes, uint64_t origin) {
          return kv::Snapshot::Deserialize(bytes, origin, layout, HostMemory(), nullptr);
        }));
  };
  std::vector<double> written;
  std::vector<double> read;
  std::vector<double> missed;
  int64_t num_bytes = 0;
  {
    const auto writer = open();
    const auto reader = open();
    for (int round = 0; round < rounds; ++round) {
      kv::SequenceState state = Must(kv::SequenceState::Create(layout, HostMemory(), nullptr));
      Must(kv::FillWithRandomRows(state, num_tokens, 11 + round));
      std::vector<int32_t> prompt(static_cast<size_t>(num_tokens), round + 1);
      const Clock::time_point start = Clock::now();
      const auto publication = writer->Publish(0, prompt, state);
      while (!writer->NumPublished(*publication)) writer->WaitForWrite(std::chrono::milliseconds(10));
      if (writer->NumPublished(*publication) != num_tokens) Die("the state was not written");
      written.push_back(Seconds(start));
      writer->Tidy();
      num_bytes = writer->stats().num_bytes / (round + 1);
      prompt.push_back(0);
      // A prompt that none has read: what asking costs.
      const Clock::time_point miss = Clock::now();
      if (Await(*reader, std::vector<int32_t>(static_cast<size_t>(num_tokens), -round)))
        Die("a hit without a state");
      missed.push_back(Seconds(miss));
      ForgetPages(directory / "states");
      const Clock::time_point hit = Clock::now();
      if (!Await(*reader, prompt)) Die("the state was not found");
      read.push_back(Seconds(hit));
    }
  }
  fs::remove_all(directory);
  const double seconds = Median(read);
  const double megabytes = static_cast<double>(num_bytes) / 1e6;
  fmt::print("a state of {} tokens of {}: {:.1f} MB\n", num_tokens, shape, megabytes);
  fmt::print("{:<44} {:>9.3f} s {:>8.0f} MB/s\n", "write, flush and name it", Median(written),
             megabytes / Median(written));
  fmt::print("{:<44} {:>9.5f} s\n", "ask for a prompt that none has read", Median(missed));
  fmt::print("{:<44} {:>9.3f} s {:>8.0f} MB/s\n", "find it from another server, read and check", seconds,
             megabytes / seconds);
  fmt::print("{:<44} {:>9.0f} tokens a second\n", "reading the prompt takes as long at",
             static_cast<double>(num_tokens) / seconds);
}

}  // namespace
}  // namespace dsv4::bench

int main(int argc, char** argv) {
  if (argc < 2) dsv4::bench::Die("want DIR [TOKENS] [SHAPE] [ROUNDS]");
  dsv4::bench::Run(argv[1], argc > 2 ? std::stoll(argv[2]) : 32768, argc > 3 ? argv[3] : "flash",
                   argc > 4 ? std::stoi(argv[4]) : 5);
  return 0;
}
