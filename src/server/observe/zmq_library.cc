// Looks up libzmq's functions.
#include "server/observe/zmq_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace dsv4::server {

Result<ZmqLibrary> ZmqLibrary::Open() {
  constexpr const char* kName = "libzmq.so.5";
  void* const library = ::dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = ::dlerror();
    return Error(FailedPrecondition(fmt::format("ZeroMQ cannot be opened: {}; install {} (Debian: libzmq5)",
                                                reason != nullptr ? reason : kName, kName)));
  }
  ZmqLibrary zmq;
  Status status;
  const auto find = [&]<typename Function>(const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(library, name));
    if (function == nullptr && status.ok())
      status = FailedPrecondition(fmt::format("{} has no {}; wanted ZeroMQ 4", kName, name));
  };
  find("zmq_ctx_new", zmq.new_context);
  find("zmq_ctx_term", zmq.end_context);
  find("zmq_socket", zmq.new_socket);
  find("zmq_close", zmq.close);
  find("zmq_bind", zmq.bind);
  find("zmq_setsockopt", zmq.set_option);
  find("zmq_getsockopt", zmq.get_option);
  find("zmq_send", zmq.send);
  find("zmq_recv", zmq.receive);
  find("zmq_errno", zmq.error);
  find("zmq_strerror", zmq.error_text);
  if (!status.ok()) return Error(status);
  return zmq;
}

}  // namespace dsv4::server
