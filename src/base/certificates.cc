// Paths of certificates.
#include "base/certificates.h"

#include <unistd.h>

#include <array>
#include <cstdlib>

namespace dsv4 {

const char* CertificateFile() {
  const std::array<const char*, 5> places = {
      std::getenv("SSL_CERT_FILE"), "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
      "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"};
  for (const char* path : places) {
    if (path != nullptr && access(path, R_OK) == 0) return path;
  }
  return nullptr;
}

}  // namespace dsv4
