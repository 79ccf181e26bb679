// HandlerMemory: room that is set aside for one operation of Asio, so that beginning it needs no memory. A
// part of the HTTP server.
#pragma once

#include <cstddef>
#include <memory>

namespace dsv4::server {

// Not for several threads. Outlives the operation.
class HandlerMemory {
 public:
  HandlerMemory() = default;
  HandlerMemory(const HandlerMemory&) = delete;
  HandlerMemory& operator=(const HandlerMemory&) = delete;
  // The room, or the heap's where an operation has it already or wants more. Throws std::bad_alloc.
  void* Allocate(size_t num_bytes) {
    if (used_ || num_bytes > sizeof room_) return ::operator new(num_bytes);
    used_ = true;
    return room_;
  }
  void Free(void* memory) {
    if (memory == room_)
      used_ = false;
    else
      ::operator delete(memory);
  }

 private:
  alignas(std::max_align_t) std::byte room_[1024];
  bool used_ = false;
};

// Allocator that asio::bind_allocator takes.
template <typename T>
class HandlerAllocator {
 public:
  using value_type = T;  // NOLINT(readability-identifier-naming): the standard's name.
  explicit HandlerAllocator(HandlerMemory& memory) : memory_(&memory) {}
  template <typename Other>
  // NOLINTNEXTLINE(google-explicit-constructor): allocators convert.
  HandlerAllocator(const HandlerAllocator<Other>& other) : memory_(other.memory()) {}
  T* allocate(size_t count) { return static_cast<T*>(memory_->Allocate(sizeof(T) * count)); }
  void deallocate(T* object, size_t) { memory_->Free(object); }
  HandlerMemory* memory() const { return memory_; }
  template <typename Other>
  bool operator==(const HandlerAllocator<Other>& other) const {
    return memory_ == other.memory();
  }

 private:
  HandlerMemory* memory_;
};

}  // namespace dsv4::server
