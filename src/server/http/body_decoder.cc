// Decoders of gzip, deflate and zstd bodies, with bounds on growth.
#include "server/http/body_decoder.h"

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include <new>

#include "base/text.h"

namespace dsv4::server {
namespace {

// Writes into room at the end of `out`, which is then cut to what was written.
class Room {
 public:
  explicit Room(std::string& out) : out_(out), begin_(out.size()) {
    out_.resize(begin_ + BodyDecoder::kMostAtOnce);
  }
  ~Room() { out_.resize(begin_ + written_); }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  char* data() { return out_.data() + begin_; }
  void SetWritten(size_t written) { written_ = written; }

 private:
  std::string& out_;
  size_t begin_;
  size_t written_ = 0;
};

class ZlibDecoder final : public BodyDecoder {
 public:
  explicit ZlibDecoder(int window_bits) {
    if (inflateInit2(&stream_, window_bits) != Z_OK) throw std::bad_alloc();
  }
  ~ZlibDecoder() override { inflateEnd(&stream_); }

  Status Decode(std::string_view& bytes, std::string& out) override {
    if (whole_ && !bytes.empty()) {  // Another member of a gzip file.
      inflateReset(&stream_);
      whole_ = false;
    }
    Room room(out);
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
    stream_.avail_in = static_cast<uInt>(bytes.size());
    stream_.next_out = reinterpret_cast<Bytef*>(room.data());
    stream_.avail_out = static_cast<uInt>(kMostAtOnce);
    const int code = inflate(&stream_, Z_NO_FLUSH);
    bytes.remove_prefix(bytes.size() - stream_.avail_in);
    room.SetWritten(kMostAtOnce - stream_.avail_out);
    whole_ = code == Z_STREAM_END;
    if (code == Z_MEM_ERROR) throw std::bad_alloc();
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)
      return InvalidArgument(stream_.msg != nullptr ? stream_.msg : "damaged");
    return {};
  }
  bool whole() const override { return whole_; }

 private:
  z_stream stream_ = {};
  bool whole_ = false;
};

// By its name "deflate" is what zlib writes, but clients send the bare blocks too (RFC 9110, 8.4.1.2). Two
// bytes tell: bare blocks do not begin like zlib's head.
class DeflateDecoder final : public BodyDecoder {
 public:
  Status Decode(std::string_view& bytes, std::string& out) override {
    if (inner_ == nullptr) {
      while (head_.size() < 2 && !bytes.empty()) {
        head_ += bytes.front();
        bytes.remove_prefix(1);
      }
      if (head_.size() < 2) return {};
      const unsigned first = static_cast<unsigned char>(head_[0]);
      const bool has_head =
          (first & 0x0F) == Z_DEFLATED && (first << 8 | static_cast<unsigned char>(head_[1])) % 31 == 0;
      inner_ = std::make_unique<ZlibDecoder>(has_head ? MAX_WBITS : -MAX_WBITS);
      std::string_view head = head_;
      DSV4_RETURN_IF_ERROR(inner_->Decode(head, out));
      if (bytes.empty()) return {};
    }
    return inner_->Decode(bytes, out);
  }
  bool whole() const override { return inner_ != nullptr && inner_->whole(); }

 private:
  std::string head_;
  std::unique_ptr<ZlibDecoder> inner_;
};

class ZstdDecoder final : public BodyDecoder {
 public:
  ZstdDecoder() : stream_(ZSTD_createDCtx()) {
    if (stream_ == nullptr) throw std::bad_alloc();
    ZSTD_DCtx_setParameter(stream_, ZSTD_d_windowLogMax, kWindowLog);
  }
  ~ZstdDecoder() override { ZSTD_freeDCtx(stream_); }

  Status Decode(std::string_view& bytes, std::string& out) override {
    Room room(out);
    ZSTD_inBuffer input = {bytes.data(), bytes.size(), 0};
    ZSTD_outBuffer output = {room.data(), kMostAtOnce, 0};
    const size_t left = ZSTD_decompressStream(stream_, &output, &input);
    bytes.remove_prefix(input.pos);
    room.SetWritten(output.pos);
    if (ZSTD_isError(left) != 0) return InvalidArgument(ZSTD_getErrorName(left));
    whole_ = left == 0;
    return {};
  }
  bool whole() const override { return whole_; }

 private:
  static constexpr int kWindowLog = 23;  // 8 MiB: the most of HTTP.

  ZSTD_DCtx* stream_;
  bool whole_ = false;
};

}  // namespace

Result<std::unique_ptr<BodyDecoder>> BodyDecoder::Make(std::string_view content_encoding) {
  const std::string coding = Lowercase(content_encoding);
  if (coding.empty() || coding == "identity") return nullptr;
  constexpr int kGzip = 16;  // Its head and tail instead of zlib's.
  if (coding == "gzip" || coding == "x-gzip") return std::make_unique<ZlibDecoder>(kGzip + MAX_WBITS);
  if (coding == "deflate") return std::make_unique<DeflateDecoder>();
  if (coding == "zstd") return std::make_unique<ZstdDecoder>();
  return Error(
      InvalidArgument(fmt::format("Content-Encoding: got {}, wanted {}", content_encoding, kCodings)));
}

}  // namespace dsv4::server
