// Implementation of npy.h: a streaming writer of NumPy files.
#include "apps/tools/npy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <functional>
#include <numeric>

#include "base/text.h"

namespace dsv4::apps {
namespace {

static_assert(std::endian::native == std::endian::little, "the header below says '<f4'");

}  // namespace

Result<NpyWriter> NpyWriter::Create(const std::string& path, std::span<const int64_t> shape) {
  DSV4_ASSIGN_OR_RETURN(io::OutputFile file, io::OutputFile::Create(path));
  // Magic, version 1.0, header length; the header is padded with blanks so that the values start at a
  // multiple of 64.
  std::string header =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}), }}", fmt::join(shape, ", "));
  constexpr size_t kPreambleBytes = 10;
  header.append(63 - (kPreambleBytes + header.size()) % 64, ' ');
  header += '\n';
  const auto length = static_cast<uint16_t>(header.size());
  std::string preamble("\x93NUMPY\x01\x00", 8);
  preamble += static_cast<char>(length & 0xff);
  preamble += static_cast<char>(length >> 8);
  header = preamble + header;
  DSV4_TRY(file.Append(std::as_bytes(std::span(header))));
  return NpyWriter(path, std::move(file),
                   std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies()));
}

Status NpyWriter::Append(std::span<const float> values) {
  num_values_left_ -= static_cast<int64_t>(values.size());
  if (num_values_left_ < 0) return Internal(fmt::format("{}: more values than announced", path_));
  return file_.Append(std::as_bytes(values));
}

Status NpyWriter::Finish() {
  if (num_values_left_ != 0)
    return Internal(fmt::format("{}: {} missing", path_, Counted(num_values_left_, "value")));
  return file_.Finish();
}

}  // namespace dsv4::apps
