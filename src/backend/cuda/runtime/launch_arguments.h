// Arguments of a kernel as bytes, which are compared with those of other launches (launch_list.h).
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>

namespace dsv4::backend::cuda {

// Borrowed: a value of a kernel's parameter.
struct LaunchArgument {
  const void* value = nullptr;
  size_t num_bytes = 0;
};

inline constexpr size_t kLaunchArgumentAlignment = 16;

// Clears bytes between members, which would differ by chance. GCC (12.2 seen) clears the wrong bytes where padding
// stands behind an array of structures that have padding themselves. They are as far from the object's
// beginning as the padding is from the array's end. Such an array comes last, and its structure says so
// (lowering/work/rows.h).
template <typename T>
void ClearPadding(T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  static_assert(alignof(T) <= kLaunchArgumentAlignment);
  if constexpr (std::is_class_v<T>) __builtin_clear_padding(&value);
}

// Calls add(arguments) with `values`, which become the types of the kernel's parameters, and gives what it gives.
template <typename... Params, typename Add>
auto PassArguments(const Add& add, Params... values) {
  (ClearPadding(values), ...);
  const LaunchArgument arguments[] = {{&values, sizeof(values)}...,
                                      {}};  // One more, since there may be none.
  return add(std::span(arguments).first(sizeof...(Params)));
}

}  // namespace dsv4::backend::cuda
