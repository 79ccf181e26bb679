// The path of this system's certificates of authorities.
#pragma once

namespace dsv4 {

// SSL_CERT_FILE, or the first of the usual paths that can be read; null: none. A library's own path is that
// of the system it was built on, which is not every system's.
const char* CertificateFile();

}  // namespace dsv4
