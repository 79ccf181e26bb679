// The op functions of the CPU backend, and the context they share. Contracts are in ops/<op>.h.
#pragma once

#include "backend/cpu/kernels/kernels.h"
#include "ops/op_table.h"

namespace dsv4::backend::cpu {

class CpuContext final : public ops::OpContext {
 public:
  CpuContext(const ThreadPoolOptions& threads, const Kernels& kernels)
      : threads_(threads), kernels_(kernels) {}
  Memory& memory() override { return HostMemory(); }
  ThreadPool& threads() override { return threads_; }
  Stream stream() override { return nullptr; }
  const Kernels& kernels() const { return kernels_; }

 private:
  ThreadPool threads_;
  Kernels kernels_;
};

// The ops below are only ever handed the context made with them.
inline const Kernels& KernelsOf(const ops::OpContext& context) {
  return static_cast<const CpuContext&>(context).kernels();
}

#define DSV4_DECLARE_OP(name, Op) Status Op(ops::OpContext& context, const ops::Op##Args& args);
DSV4_FOR_EVERY_OP(DSV4_DECLARE_OP)
#undef DSV4_DECLARE_OP

}  // namespace dsv4::backend::cpu
