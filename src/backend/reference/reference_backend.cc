// Factory of the reference backend, the judge of the others: a context without state, and its op table.
#include "backend/reference/reference_backend.h"

#include "backend/reference/reference_ops.h"

namespace dsv4::backend {

namespace {

class ReferenceContext final : public ops::OpContext {
 public:
  explicit ReferenceContext(int num_threads) : threads_(num_threads) {}
  Memory& memory() override { return HostMemory(); }
  ThreadPool& threads() override { return threads_; }
  Stream stream() override { return nullptr; }

 private:
  ThreadPool threads_;
};

}  // namespace

ops::Backend MakeReferenceBackend(int num_threads) {
  ops::Backend backend;
  backend.name = "reference";
  backend.context = std::make_shared<ReferenceContext>(num_threads);
  backend.packs_rows = true;
#define DSV4_OP_ENTRY(name, Op) backend.table.name = reference::Op;
  DSV4_FOR_EVERY_OP(DSV4_OP_ENTRY)
#undef DSV4_OP_ENTRY
  return backend;
}

}  // namespace dsv4::backend
