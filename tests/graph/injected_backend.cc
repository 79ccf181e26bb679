// Backend that counts op calls and lets the n-th one fail.
#include "tests/graph/injected_backend.h"

#include "tests/graph/toy_model.h"

namespace dsv4::test {
namespace {

Status Count(const char* name) {
  Injection& injection = TheInjection();
  ++injection.calls[name];
  if (injection.num_calls++ != injection.fail_at) return {};
  injection.failed_op = name;
  return Internal(std::string(name) + ": injected failure");
}

// The op runs before it is made to fail, so that a failed step leaves its writes behind.
#define DSV4_INJECTED_OP(name, Op)                                  \
  Status name(ops::OpContext& context, const ops::Op##Args& args) { \
    DSV4_RETURN_IF_ERROR(ToyBackend().table.name(context, args));   \
    return Count(#name);                                            \
  }
DSV4_FOR_EACH_OP(DSV4_INJECTED_OP)
#undef DSV4_INJECTED_OP

}  // namespace

Injection& TheInjection() {
  static Injection injection;
  return injection;
}

const ops::Backend& InjectedBackend() {
  static const ops::Backend backend = [] {
    ops::Backend made = ToyBackend();
    made.name = "injected";
#define DSV4_INJECTED_ENTRY(name, Op) made.table.name = name;
    DSV4_FOR_EACH_OP(DSV4_INJECTED_ENTRY)
#undef DSV4_INJECTED_ENTRY
    return made;
  }();
  return backend;
}

}  // namespace dsv4::test
