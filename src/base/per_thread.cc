// The list of values that end with their thread.
#include "base/per_thread.h"

#include <pthread.h>

#include <new>

namespace dsv4 {
namespace {

struct Node {
  void* value;
  void (*destroy)(void*);
  Node* next;
};

void DestroyAll(void* first) {
  for (auto* node = static_cast<Node*>(first); node != nullptr;) {
    const std::unique_ptr<Node> ended(node);
    node = node->next;
    ended->destroy(ended->value);
  }
}

// Deleted with the library: a thread that outlives it must not call into it.
class Key {
 public:
  Key() {
    if (::pthread_key_create(&key_, DestroyAll) != 0) throw std::bad_alloc();
  }
  ~Key() { (void)::pthread_key_delete(key_); }
  Key(const Key&) = delete;
  Key& operator=(const Key&) = delete;
  pthread_key_t get() const { return key_; }

 private:
  pthread_key_t key_ = 0;
};

}  // namespace

void DestroyWithThread(void* value, void (*destroy)(void*)) {
  static const Key key;
  auto node =
      std::make_unique<Node>(Node{value, destroy, static_cast<Node*>(::pthread_getspecific(key.get()))});
  if (::pthread_setspecific(key.get(), node.get()) != 0) throw std::bad_alloc();
  (void)node.release();
}

}  // namespace dsv4
