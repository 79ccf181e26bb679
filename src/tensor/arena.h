// Arena: short-lived tensors of one step, given out in stack order from memory that is reused step after
// step.
//
// Tensors made inside an Arena::Scope are gone when it ends; the memory itself stays for the next. The first
// steps may add blocks; Recycle merges them into one, so that the same work later gets the same addresses
// without allocating. Contents of new tensors are unspecified. Not thread-safe. The Memory must outlive the
// arena.
#pragma once

#include <cstddef>
#include <vector>

#include "tensor/tensor.h"

namespace dsv4 {

class Arena {
 public:
  explicit Arena(Memory& memory) : memory_(memory) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // A contiguous tensor, 256-byte aligned within its block; never null, also when it has no elements.
  // ResourceExhausted when the device is out of memory.
  Result<TensorView> Allocate(DType dtype, Shape shape);

  // Gives back everything allocated since it was made.
  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), block_(arena.block_), offset_(arena.offset_) {}
    ~Scope() {
      arena_.block_ = block_;
      arena_.offset_ = offset_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    size_t block_;
    size_t offset_;
  };

  // Call with no tensor in use: several blocks become one of their total size.
  Status Recycle();

  // Bytes held.
  size_t capacity_bytes() const;
  size_t num_blocks() const { return blocks_.size(); }
  // Origin of all addresses: the same memory gives the same tensors out to the same work. Null where it is in
  // several blocks, or none.
  const void* base() const { return blocks_.size() == 1 ? blocks_[0].data() : nullptr; }

 private:
  Memory& memory_;
  std::vector<Buffer> blocks_;
  size_t block_ = 0;   // Allocation goes on in this block,
  size_t offset_ = 0;  // at this byte.
};

}  // namespace dsv4
