// Memory of one user that grows and stays, aligned for the widest vectors.
#pragma once

#include <cstdint>
#include <memory>
#include <new>

namespace dsv4::backend::cpu {

class Scratch {
 public:
  // At least `bytes`; what was there before may be gone.
  uint8_t* Get(int64_t bytes) {
    if (bytes > capacity_) {
      memory_.reset(static_cast<uint8_t*>(::operator new(static_cast<size_t>(bytes), kAlignment)));
      capacity_ = bytes;
    }
    return memory_.get();
  }
  float* Floats(int64_t count) {
    return reinterpret_cast<float*>(Get(count * static_cast<int64_t>(sizeof(float))));
  }
  uint8_t* data() const { return memory_.get(); }
  float* floats() const { return reinterpret_cast<float*>(memory_.get()); }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(uint8_t* memory) const { ::operator delete(memory, kAlignment); }
  };
  std::unique_ptr<uint8_t, Free> memory_;
  int64_t capacity_ = 0;
};

}  // namespace dsv4::backend::cpu
