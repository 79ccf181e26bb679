// Stack allocation of a step's tensors from recycled blocks.
#include "tensor/arena.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace dsv4 {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kMinBlockBytes = size_t{1} << 20;
constexpr size_t kMostAhead = size_t{16} << 20;

}  // namespace

Result<TensorView> Arena::Allocate(DType dtype, Shape shape) {
  const auto num_bytes = static_cast<size_t>(shape.num_elements() * ElementBytes(dtype));
  const size_t rounded = std::max<size_t>(1, (num_bytes + kAlignment - 1) / kAlignment) * kAlignment;
  while (block_ < blocks_.size() && blocks_[block_].num_bytes() - offset_ < rounded) {
    ++block_;
    offset_ = 0;
  }
  if (block_ == blocks_.size()) {
    // Doubling keeps the number of small blocks small. Large ones would be twice what is wanted, and Recycle
    // keeps them all.
    DSV4_ASSIGN_OR_RETURN(
        Buffer block,
        memory_.Allocate(std::max({rounded, kMinBlockBytes, std::min(capacity_bytes(), kMostAhead)})));
    blocks_.push_back(std::move(block));
    offset_ = 0;
  }
  void* data = static_cast<std::byte*>(blocks_[block_].data()) + offset_;
  offset_ += rounded;
  return TensorView::Contiguous(data, dtype, shape, memory_.device());
}

Status Arena::Recycle() {
  DSV4_CHECK(block_ == 0 && offset_ == 0) << "block " << block_ << ", offset " << offset_;
  if (blocks_.size() <= 1) return {};
  const size_t total = capacity_bytes();
  {
    // A queue hands over what waits in it before memory is freed, and what waits may want memory of this
    // arena.
    const std::vector<Buffer> freed = std::exchange(blocks_, {});
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(Buffer block, memory_.Allocate(total));
  blocks_.push_back(std::move(block));
  return {};
}

size_t Arena::capacity_bytes() const {
  size_t total = 0;
  for (const Buffer& block : blocks_) total += block.num_bytes();
  return total;
}

}  // namespace dsv4
