// RoomFor: how many clusters of so many blocks the device has room for.
#pragma once

#include <cstdint>
#include <type_traits>

namespace dsv4::backend::cuda {

// A function that rules ask last, since its answer depends on the compiled kernel. It is not owned, which is why one with captures must have a
// name. (A std::function costs each kernel's source half a second to compile.)
class RoomFor {
 public:
  RoomFor() = default;
  template <typename Ask>
  requires(!std::is_same_v<std::remove_cvref_t<Ask>, RoomFor> && std::is_invocable_v<Ask&, int> &&
           (std::is_lvalue_reference_v<Ask> || std::is_empty_v<std::remove_cvref_t<Ask>>))
      RoomFor(Ask&& ask)  // NOLINT(google-explicit-constructor): a function is what the rules want.
      : of_(std::is_empty_v<std::remove_cvref_t<Ask>> ? nullptr : &ask),
        ask_([](const void* of, int blocks) -> int64_t {
          using Function = std::remove_cvref_t<Ask>;
          if constexpr (std::is_empty_v<Function>) {
            return Function{}(blocks);
          } else {
            return (*static_cast<const Function*>(of))(blocks);
          }
        }) {}

  explicit operator bool() const { return ask_ != nullptr; }
  // 0: of a kernel whose clusters all have as many.
  int64_t operator()(int blocks = 0) const { return ask_(of_, blocks); }

 private:
  const void* of_ = nullptr;
  int64_t (*ask_)(const void* of, int blocks) = nullptr;
};

}  // namespace dsv4::backend::cuda
