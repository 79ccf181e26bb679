// Loads and stores of vectors at any address, included by rows_body.h and panels_body.h inside the namespace
// of a tier.
//
// No include guard: one inclusion per unit.

#define DSV4_INLINE static inline __attribute__((always_inline))

template <typename T>
DSV4_INLINE T Load(const void* from) {
  T value;
  __builtin_memcpy(&value, from, sizeof(value));
  return value;
}

template <typename T>
DSV4_INLINE void Store(void* to, T value) {
  __builtin_memcpy(to, &value, sizeof(value));
}
