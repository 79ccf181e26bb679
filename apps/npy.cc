#include "apps/npy.h"

#include <fmt/format.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>

namespace dsv4::apps {
namespace {

static_assert(std::endian::native == std::endian::little, "the header below says '<f4'");

Status IoError(const std::string& path, const char* what) {
  return InvalidArgument(fmt::format("{}: {}: {}", path, what, std::strerror(errno)));
}

}  // namespace

Result<NpyWriter> NpyWriter::Create(const std::string& path, int64_t num_rows, int64_t num_columns) {
  NpyWriter writer;
  writer.path_ = path;
  writer.temporary_path_ = fmt::format("{}.{}.tmp", path, getpid());
  writer.num_values_left_ = num_rows * num_columns;
  writer.file_.reset(std::fopen(writer.temporary_path_.c_str(), "wb"));
  if (!writer.file_) return Error(IoError(writer.temporary_path_, "cannot write"));

  // Magic, version 1.0, header length; the header is padded with blanks so that the values start at a multiple of 64.
  std::string header =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", num_rows, num_columns);
  constexpr size_t kPreambleBytes = 10;
  header.append(63 - (kPreambleBytes + header.size()) % 64, ' ');
  header += '\n';
  const auto length = static_cast<uint16_t>(header.size());
  std::string preamble("\x93NUMPY\x01\x00", 8);
  preamble += static_cast<char>(length & 0xff);
  preamble += static_cast<char>(length >> 8);
  header = preamble + header;
  if (std::fwrite(header.data(), 1, header.size(), writer.file_.get()) != header.size()) {
    return Error(IoError(writer.temporary_path_, "cannot write"));
  }
  return writer;
}

NpyWriter::~NpyWriter() {
  if (file_) {
    file_.reset();
    std::remove(temporary_path_.c_str());
  }
}

Status NpyWriter::Append(std::span<const float> values) {
  num_values_left_ -= static_cast<int64_t>(values.size());
  if (num_values_left_ < 0) return Internal(fmt::format("{}: more values than announced", path_));
  if (std::fwrite(values.data(), sizeof(float), values.size(), file_.get()) != values.size()) {
    return IoError(temporary_path_, "cannot write");
  }
  return {};
}

Status NpyWriter::Finish() {
  if (num_values_left_ != 0) return Internal(fmt::format("{}: {} values missing", path_, num_values_left_));
  if (std::fflush(file_.get()) != 0) return IoError(temporary_path_, "cannot write");
  if (std::rename(temporary_path_.c_str(), path_.c_str()) != 0)
    return IoError(path_, "cannot move into place");
  file_.reset();
  return {};
}

}  // namespace dsv4::apps
