// SHA-256 and git digests by OpenSSL, and the form of digest texts.
#include "hub/digest.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>

#include "base/check.h"

namespace dsv4::hub {

void Digest::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

Digest::Digest(DigestKind kind, int64_t num_bytes) : context_(EVP_MD_CTX_new()) {
  DSV4_CHECK(context_ != nullptr);
  const bool sha256 = kind == DigestKind::kSha256;
  DSV4_CHECK(EVP_DigestInit_ex(context_.get(), sha256 ? EVP_sha256() : EVP_sha1(), nullptr) == 1);
  if (sha256) return;
  std::string header = fmt::format("blob {}", num_bytes);
  header += '\0';
  Update(header);
}

void Digest::Update(std::string_view bytes) {
  DSV4_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
}

std::string Digest::Finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
  unsigned int size = 0;
  DSV4_CHECK(EVP_DigestFinal_ex(context_.get(), bytes.data(), &size) == 1);
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) hex += fmt::format("{:02x}", bytes[i]);
  return hex;
}

bool IsDigest(std::string_view text) {
  return (text.size() == 40 || text.size() == 64) &&
         std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

}  // namespace dsv4::hub
