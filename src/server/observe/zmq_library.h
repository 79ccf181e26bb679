// The functions of libzmq that we call, out of the library that the machine has. It is opened when it is
// asked for: no build needs it, and no server that publishes nothing. Source: ZeroMQ's reference of version
// 4.
#pragma once

#include <cstddef>

#include "base/status.h"

namespace dsv4::server {

struct ZmqLibrary {
  // FailedPrecondition says what is missing.
  static Result<ZmqLibrary> Open();

  // Kinds of sockets, options and flags, by their numbers.
  static constexpr int kPub = 1;
  static constexpr int kRouter = 6;
  static constexpr int kLinger = 17;
  static constexpr int kSendHighWater = 23;
  static constexpr int kLastEndpoint = 32;
  static constexpr int kMore = 13;  // Whether the message that was read has further parts.
  static constexpr int kDontWait = 1;
  static constexpr int kSendMore = 2;

  void* (*new_context)() = nullptr;
  int (*end_context)(void* context) = nullptr;
  void* (*new_socket)(void* context, int kind) = nullptr;
  int (*close)(void* socket) = nullptr;
  int (*bind)(void* socket, const char* endpoint) = nullptr;
  int (*set_option)(void* socket, int option, const void* value, size_t size) = nullptr;
  int (*get_option)(void* socket, int option, void* value, size_t* size) = nullptr;
  int (*send)(void* socket, const void* bytes, size_t size, int flags) = nullptr;
  int (*receive)(void* socket, void* bytes, size_t size, int flags) = nullptr;
  int (*error)() = nullptr;
  const char* (*error_text)(int error) = nullptr;
};

}  // namespace dsv4::server
