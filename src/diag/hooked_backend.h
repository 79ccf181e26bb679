// HookedBackend: a backend whose every op can be watched, changed or replaced while a model runs on it. The
// model is made on it once; hooks come and go. Without a hook an op is called as it is, so nothing that is
// measured differs from a model on the bare backend.
#pragma once

#include <functional>
#include <memory>

#include "ops/op_table.h"

namespace dsv4::diag {

// Calls the op itself; a hook decides when, how often and with which arguments.
template <typename Args>
using InnerOp = std::function<Status(const Args& args)>;
template <typename Args>
using OpHook = std::function<Status(const InnerOp<Args>& inner, const Args& args)>;

// Empty: the op as it is.
struct OpHooks {
#define DSV4_OP_HOOK(name, Op) OpHook<ops::Op##Args> name;
  DSV4_FOR_EVERY_OP(DSV4_OP_HOOK)
#undef DSV4_OP_HOOK
};

class HookedBackend {
 public:
  // `inner` lacks no op, or those of several ranks.
  explicit HookedBackend(ops::Backend inner);

  // Backend that a model is made on. Models may outlive this object.
  const ops::Backend& backend() const { return backend_; }
  const ops::Backend& inner() const { return inner_; }

  // Hooks act from construction to destruction of a Scope; one at a time. For more, hook a hooked backend.
  class Scope {
   public:
    Scope(HookedBackend& backend, OpHooks hooks);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    HookedBackend& backend_;
  };

 private:
  ops::Backend inner_;
  std::shared_ptr<OpHooks> hooks_;
  bool scoped_ = false;
  ops::Backend backend_;
};

}  // namespace dsv4::diag
