// Preloaded into a server: after SIGUSR2 one allocation of DSV4_FAIL_EVERY fails, on any thread, until the next SIGUSR2.
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

extern void* __libc_malloc(size_t size);
extern void* __libc_calloc(size_t count, size_t size);
extern void* __libc_realloc(void* memory, size_t size);
extern void* __libc_memalign(size_t alignment, size_t size);

static atomic_int failing;
static atomic_ullong state;
static unsigned long long every = 1000;

static int Fails(void) {
  if (!atomic_load(&failing)) return 0;
  // SplitMix64: the same sequence for a seed, shared by all threads.
  unsigned long long x = atomic_fetch_add(&state, 0x9E3779B97F4A7C15ull);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  if ((x ^ (x >> 31)) % every != 0) return 0;
  errno = ENOMEM;
  return 1;
}

void* malloc(size_t size) { return Fails() ? NULL : __libc_malloc(size); }
void* calloc(size_t count, size_t size) { return Fails() ? NULL : __libc_calloc(count, size); }
void* realloc(void* memory, size_t size) { return Fails() ? NULL : __libc_realloc(memory, size); }
void* aligned_alloc(size_t alignment, size_t size) {
  return Fails() ? NULL : __libc_memalign(alignment, size);
}
void* memalign(size_t alignment, size_t size) { return Fails() ? NULL : __libc_memalign(alignment, size); }
int posix_memalign(void** memory, size_t alignment, size_t size) {
  *memory = Fails() ? NULL : __libc_memalign(alignment, size);
  return *memory == NULL ? ENOMEM : 0;
}

static void Toggle(int signal_number) {
  (void)signal_number;
  atomic_fetch_xor(&failing, 1);
}

__attribute__((constructor)) static void Begin(void) {
  if (getenv("DSV4_FAIL_EVERY") != NULL) every = strtoull(getenv("DSV4_FAIL_EVERY"), NULL, 10);
  if (getenv("DSV4_FAIL_SEED") != NULL) atomic_store(&state, strtoull(getenv("DSV4_FAIL_SEED"), NULL, 10));
  signal(SIGUSR2, Toggle);
}
