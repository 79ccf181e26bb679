// DSV4_CHECK(condition) << values: aborts with the values when an invariant of ours is broken. Never
// reachable from input: what a caller or a file can get wrong is a Status.
#pragma once

#include <sstream>

namespace dsv4::internal {

class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  [[noreturn]] ~CheckFailure();
  template <typename T>
  CheckFailure& operator<<(const T& value) {
    stream_ << value;
    return *this;
  }

 private:
  std::ostringstream stream_;
};

}  // namespace dsv4::internal

#define DSV4_CHECK(condition) \
  if (condition) [[likely]] { \
  } else                      \
    ::dsv4::internal::CheckFailure(__FILE__, __LINE__, #condition)
