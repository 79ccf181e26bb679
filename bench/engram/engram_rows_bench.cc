// Rows of an n-gram table per second: engram_rows_bench [DIRECTORY [MILLIONS_OF_ROWS]]. A table of the
// release's width is written to a file in DIRECTORY (default /tmp). Random rows are then read as a decoded
// token and as a prompt of 512 tokens want them. They come from memory, from the disk asked for ahead, and
// from the disk touched row by row.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <random>

#include "base/parallel.h"
#include "base/stopwatch.h"
#include "bench/must.h"
#include "io/disk_rate.h"
#include "io/safetensors_writer.h"
#include "model/engram/engram_tables.h"

namespace dsv4::bench {
namespace {

constexpr int64_t kWidth = 256;
constexpr int64_t kGroup = 32;
constexpr int64_t kRowsOfToken = 48;  // For two layers.
constexpr double kTokensPerSecond =
    10;  // Speed of a CPU, beside which the time of a token's rows is printed.

void WriteTable(const std::string& path, int64_t num_rows) {
  auto writer =
      Must(io::SafetensorsWriter::Create(path, {{"codes", DType::kF8E4M3, {num_rows, kWidth}},
                                                {"scales", DType::kF8E8M0, {num_rows, kWidth / kGroup}}}));
  std::mt19937 random(1);
  std::vector<uint8_t> piece(1 << 20);
  const std::vector<io::TensorSpec> specs(writer.specs().begin(), writer.specs().end());
  for (const io::TensorSpec& spec : specs) {
    for (int64_t done = 0; done < spec.num_bytes();) {
      for (uint8_t& byte : piece)
        byte = static_cast<uint8_t>(spec.dtype == DType::kF8E4M3 ? random() & 0x77 : 110 + random() % 16);
      const int64_t count = std::min(spec.num_bytes() - done, static_cast<int64_t>(piece.size()));
      Must(writer.Append(std::as_bytes(std::span(piece).first(static_cast<size_t>(count)))));
      done += count;
    }
  }
  Must(writer.Finish());
}

struct Times {
  double seconds = 0;
  double ask_seconds = 0;  // Seconds of them, until Ask returned.
};

class Bench {
 public:
  Bench(const std::string& directory, int64_t num_rows) : num_rows_(num_rows) {
    checkpoint_ = Must(io::Checkpoint::Open(directory));
    const auto view = [&](const char* name) {
      const io::StoredTensor* tensor = checkpoint_->Find(name);
      return TensorView::Contiguous(static_cast<const void*>(tensor->bytes.data()), *tensor->dtype,
                                    {tensor->dims[0], tensor->dims[1]});
    };
    tables_ = Must(model::EngramTables::Create(checkpoint_, {{"table",
                                                              {.format = WeightFormat::kFp8Block,
                                                               .rows = num_rows,
                                                               .cols = kWidth,
                                                               .data = view("codes"),
                                                               .scale = view("scales"),
                                                               .block_rows = 1,
                                                               .block_cols = kGroup}}}));
  }

  std::vector<int64_t> Draw(int64_t count) {
    std::vector<int64_t> rows;
    while (static_cast<int64_t>(rows.size()) < count)
      rows.push_back(static_cast<int64_t>(random_() % static_cast<uint64_t>(num_rows_)));
    return rows;
  }

  void Forget() const {
    const io::MappedFile& file = checkpoint_->files()[0];
    io::AdviseDontNeed(file.bytes());
    ::posix_fadvise(file.file()->descriptor(), 0, 0, POSIX_FADV_DONTNEED);
  }

  Times Read(std::span<const int64_t> rows, bool ask) {
    std::vector<uint16_t> values(rows.size() * kWidth);
    Times times;
    const Stopwatch watch;
    if (ask) tables_->Ask(0, rows);
    times.ask_seconds = watch.seconds();
    Must(tables_->Read(0, rows, threads_, DType::kBF16, std::as_writable_bytes(std::span(values))));
    times.seconds = watch.seconds();
    return times;
  }

  const io::Checkpoint& checkpoint() const { return *checkpoint_; }

 private:
  int64_t num_rows_;
  std::shared_ptr<const io::Checkpoint> checkpoint_;
  std::unique_ptr<model::EngramTables> tables_;
  std::mt19937_64 random_{7};
  ThreadPool threads_{2};
};

void Run(const std::string& directory, int64_t num_rows) {
  Bench bench(directory, num_rows);
  const auto line = [&](const char* name, int64_t tokens, bool cold, bool ask) {
    constexpr int kRounds = 20;
    double seconds = 0;
    double ask_seconds = 0;
    double cpu_seconds = 0;
    const int64_t disk_before = io::BytesReadFromDisk().value_or(0);
    for (int round = 0; round < kRounds; ++round) {
      const std::vector<int64_t> rows = bench.Draw(tokens * kRowsOfToken);
      if (cold) bench.Forget();
      if (!cold) bench.Read(rows, ask);
      const std::clock_t cpu_before = std::clock();
      const Times times = bench.Read(rows, ask);
      cpu_seconds += static_cast<double>(std::clock() - cpu_before) / CLOCKS_PER_SEC / kRounds;
      seconds += times.seconds / kRounds;
      ask_seconds += times.ask_seconds / kRounds;
    }
    const auto disk_bytes = static_cast<double>(io::BytesReadFromDisk().value_or(0) - disk_before) / kRounds;
    const auto share = [&](double s) { return 100 * s * kTokensPerSecond / static_cast<double>(tokens); };
    fmt::print(
        "{:<34}{:>6} tokens {:>10.3f} ms a pass, {:>7.3f}% of tokens at 10/s, of the CPUs' time {:>7.3f}% "
        "{:>10.0f} rows/s  ask {:>7.3f} ms  disk {:>7.2f} MB\n",
        name, tokens, 1e3 * seconds, share(seconds), share(cpu_seconds),
        static_cast<double>(tokens * kRowsOfToken) / seconds, 1e3 * ask_seconds, disk_bytes / 1e6);
  };
  const auto rate = io::MeasureDiskRate(bench.checkpoint().files(), 1 << 20);
  if (rate)
    fmt::print("disk, pieces of 1 MiB: {:.0f} MB/s{}\n", rate->bytes_per_second / 1e6,
               rate->direct ? "" : ", not direct");
  for (const int64_t tokens : {int64_t{1}, int64_t{512}}) {
    line("in memory", tokens, false, true);
    line("on disk, asked ahead", tokens, true, true);
    line("on disk, touched row by row", tokens, true, false);
  }
}

}  // namespace
}  // namespace dsv4::bench

int main(int argc, char** argv) {
  using dsv4::bench::Must;
  const std::string parent = argc > 1 ? argv[1] : "/tmp";
  const int64_t millions = argc > 2 ? std::atoll(argv[2]) : 1;
  if (millions < 1 || millions > 400)
    dsv4::bench::Die(fmt::format("got {} million rows, want 1 to 400", argv[2]));
  std::string directory = parent + "/engram_rows_XXXXXX";
  if (::mkdtemp(directory.data()) == nullptr) dsv4::bench::Die(directory + ": cannot be made");
  dsv4::bench::WriteTable(directory + "/model.safetensors", millions * 1'000'000);
  dsv4::bench::Run(directory, millions * 1'000'000);
  std::filesystem::remove_all(directory);
  return 0;
}
