// The digest that a hub gives for a file: SHA-256 of the bytes for large files, git's object id (SHA-1 behind
// a header) for small ones.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;  // OpenSSL's EVP_MD_CTX.

namespace dsv4::hub {

enum class DigestKind : uint8_t { kSha256, kGitBlob };

class Digest {
 public:
  // Digests a file of `num_bytes` bytes, which git's id depends on.
  Digest(DigestKind kind, int64_t num_bytes);
  void Update(std::string_view bytes);
  // In lower-case hexadecimal. Once.
  std::string Finish();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

// 64 hexadecimal digits are SHA-256, 40 are git's; anything else is no digest.
bool IsDigest(std::string_view text);
inline DigestKind KindOfDigest(std::string_view hex) {
  return hex.size() == 64 ? DigestKind::kSha256 : DigestKind::kGitBlob;
}

}  // namespace dsv4::hub
