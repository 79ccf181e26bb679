// The op functions of the CPU backend, and the context they share. Contracts are in ops/<op>.h.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <utility>

#include "backend/cpu/kernels/kernels.h"
#include "base/parallel.h"
#include "ops/op_table.h"

namespace dsv4::backend::cpu {

// CpuOptions::will_read
using WillRead = std::function<bool(std::span<const std::span<const std::byte>>)>;

class CpuContext final : public ops::OpContext {
 public:
  CpuContext(const ThreadPoolOptions& threads, const Kernels& kernels, WillRead will_read = {})
      : threads_(threads), kernels_(kernels), will_read_(std::move(will_read)) {}
  Memory& memory() override { return HostMemory(); }
  ThreadPool& threads() override { return threads_; }
  Stream stream() override { return nullptr; }
  const Kernels& kernels() const { return kernels_; }
  const WillRead& will_read() const { return will_read_; }

 private:
  ThreadPool threads_;
  Kernels kernels_;
  WillRead will_read_;
};

// The ops below are only ever handed the context made with them.
inline const Kernels& KernelsOf(const ops::OpContext& context) {
  return static_cast<const CpuContext&>(context).kernels();
}
inline const WillRead& WillReadOf(const ops::OpContext& context) {
  return static_cast<const CpuContext&>(context).will_read();
}

#define DSV4_DECLARE_OP(name, Op) Status Op(ops::OpContext& context, const ops::Op##Args& args);
DSV4_FOR_EVERY_OP(DSV4_DECLARE_OP)
#undef DSV4_DECLARE_OP

}  // namespace dsv4::backend::cpu
