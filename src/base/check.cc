// Failure path of DSV4_CHECK: the message to standard error, then abort.
#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace dsv4::internal {

CheckFailure::CheckFailure(const char* file, int line, const char* condition) {
  stream_ << file << ":" << line << ": check failed: " << condition << " ";
}

CheckFailure::~CheckFailure() {
  std::fputs(stream_.str().c_str(), stderr);
  std::fputc('\n', stderr);
  std::abort();
}

}  // namespace dsv4::internal
