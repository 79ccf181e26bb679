// Transport: the bytes of a connection, as they are or through TLS. A part of the HTTP server, which alone
// includes it, and Asio.
#pragma once

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/status.h"

namespace dsv4::server {

class Transport {
 public:
  using Protocol = boost::asio::generic::stream_protocol;
  // NOLINTNEXTLINE(readability-identifier-naming): Asio's name.
  using executor_type = boost::asio::io_context::executor_type;
  using Socket = boost::asio::basic_stream_socket<Protocol, executor_type>;
  using Plain = boost::beast::basic_stream<Protocol, executor_type>;
  using Tls = boost::asio::ssl::stream<Plain&>;

  // `tls` outlives this; null: none.
  Transport(Socket socket, boost::asio::ssl::context* tls) : plain_(std::move(socket)) {
    if (tls != nullptr) tls_.emplace(plain_, *tls);
  }

  executor_type get_executor() { return plain_.get_executor(); }
  // Has the time limits of what is read and written here.
  Plain& plain() { return plain_; }
  Socket& socket() { return plain_.socket(); }
  // Null without TLS.
  Tls* tls() { return tls_ ? &*tls_ : nullptr; }

  template <typename Buffers, typename Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    if (tls_) return tls_->async_read_some(buffers, std::forward<Token>(token));
    return plain_.async_read_some(buffers, std::forward<Token>(token));
  }
  template <typename Buffers, typename Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    if (tls_) return tls_->async_write_some(buffers, std::forward<Token>(token));
    return plain_.async_write_some(buffers, std::forward<Token>(token));
  }

 private:
  Plain plain_;
  std::optional<Tls> tls_;
};

// Files that servers show and prove themselves with: PEM files, the certificate with those that vouch for it
// behind it. TLS 1.2 and 1.3. InvalidArgument names the file and says what OpenSSL says.
inline Result<std::unique_ptr<boost::asio::ssl::context>> LoadTls(const std::string& certificate,
                                                                  const std::string& key) {
  using boost::asio::ssl::context;
  auto tls = std::make_unique<context>(context::tls_server);
  SSL_CTX* raw = tls->native_handle();
  SSL_CTX_set_min_proto_version(raw, TLS1_2_VERSION);
  SSL_CTX_set_options(raw, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  // Ciphers of TLS 1.2; those of 1.3 are all good. Forward secrecy and authenticated encryption.
  SSL_CTX_set_cipher_list(raw, "ECDHE+AESGCM:ECDHE+CHACHA20");
  SSL_CTX_set_mode(raw, SSL_MODE_RELEASE_BUFFERS);  // Buffers of connections that say nothing.
  boost::system::error_code error;
  // OpenSSL would ask at the terminal.
  tls->set_password_callback([](size_t, context::password_purpose) { return std::string(); }, error);
  tls->use_certificate_chain_file(certificate, error);
  if (error) {
    return Error(InvalidArgument("--tls-certificate " + certificate +
                                 ": no certificate in PEM form: " + error.message()));
  }
  tls->use_private_key_file(key, context::pem, error);
  if (error) {
    return Error(InvalidArgument(
        "--tls-key " + key +
        ": no private key in PEM form, without a password, that belongs to the certificate: " +
        error.message()));
  }
  return tls;
}

}  // namespace dsv4::server
