// A file mapped read-only into memory.
//
// The bytes stay valid for the life of the object and are read from disk on first touch. Where another
// process truncates the file, or the disk fails, the touch raises SIGBUS: checkpoints must not be edited in
// place under a running engine. A handler asks MappedFileAt which file it was, or goes on with zeros
// (StandInForLostPages).
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "io/input_file.h"

namespace dsv4::io {

class MappedFile {
 public:
  // The errors of InputFile::Open. An empty file maps to an empty span.
  static Result<MappedFile> Open(const std::string& path);
  // A file that exists only in this process. Its bytes begin zero and on a page. They take memory, in huge
  // pages where the kernel has them, when they are written through `writable`. AdviseDontNeed gives the
  // memory back, and the bytes are zero again. ResourceExhausted without addresses.
  static Result<MappedFile> InMemory(const std::string& name, size_t num_bytes,
                                     std::span<std::byte>& writable);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& path() const { return path_; }
  // The file behind the mapping; null for one that exists only in this process.
  const std::shared_ptr<const InputFile>& file() const { return file_; }

 private:
  MappedFile(std::string path, std::span<const std::byte> bytes, std::shared_ptr<const InputFile> file)
      : path_(std::move(path)), bytes_(bytes), file_(std::move(file)) {}

  std::string path_;
  std::span<const std::byte> bytes_;
  std::shared_ptr<const InputFile> file_;
};

// The path of the file whose mapping holds `address`, or null. A signal handler may call it. It knows the
// first 4096 files that are open at a time.
const char* MappedFileAt(const void* address);

// Text of a message about such a file, behind its path.
inline constexpr std::string_view kLostFileText =
    "a part that was there cannot be read any more: the file was cut short while in use, or its disk failed";

// Puts zeros where the mapped file's bytes are, from the page at `address`, which cannot be read any more, to
// the file's end. The touch can then be repeated. From then on LostFile is an error: what was computed since
// is worthless. False where no mapped file holds the address, or the kernel refuses. A signal handler may
// call it.
bool StandInForLostPages(const void* address);
// Ok, or DataLoss that names the first file of which a page was replaced. Any thread; costs a load.
Status LostFile();

// Hints to the kernel about a range of a read-only mapping; AdviseWillNeed widens it to whole pages. Failure
// changes speed only and is ignored.
void AdviseWillNeed(std::span<const std::byte> range);
// From now on a touch of a page that is not in memory reads its neighbours, but less than a huge page.
void AdviseScattered(std::span<const std::byte> range);
// From now on a touch of a page that is not in memory reads that page alone.
void AdviseRandom(std::span<const std::byte> range);
// Takes the whole pages inside the range out of this process's memory; the next touch maps them again. For
// files too large to stay resident while they are read once.
void AdviseDontNeed(std::span<const std::byte> range);

// The whole of a small text file (config.json and its like). InvalidArgument above `max_bytes`.
Result<std::string> ReadTextFile(const std::string& path, size_t max_bytes = size_t{64} << 20);

}  // namespace dsv4::io
