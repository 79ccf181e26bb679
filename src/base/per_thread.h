// PerThread: a value of its own for each thread, which ends with the thread.
#pragma once

#include <memory>

namespace dsv4 {

// Calls destroy(value) when the calling thread ends, the latest value first. Throws std::bad_alloc; then it will not be called.
void DestroyWithThread(void* value, void (*destroy)(void*));

// The calling thread's T, made at the thread's first call; one for each type, so T is a type of its user's own. Throws std::bad_alloc, and
// the next call tries again. A thread_local with a destructor would end the process there: its registration takes memory and cannot fail.
template <typename T>
T& PerThread() {
  thread_local T* value = nullptr;
  if (value == nullptr) {
    auto made = std::make_unique<T>();
    DestroyWithThread(made.get(), [](void* ended) { delete static_cast<T*>(ended); });
    value = made.release();
  }
  return *value;
}

}  // namespace dsv4
