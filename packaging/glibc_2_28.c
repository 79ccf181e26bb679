/* What g++ 12's runtime libraries take from a C library newer than 2.28, for a binary that runs on 2.28 (./dev package).
 *
 *   __libc_single_threaded  2.32  a hint of libstdc++ that reference counts may skip atomics; 0 is always right
 *   arc4random              2.36  std::random_device's last resort; getrandom is there since 2.25
 *   pthread_cond_clockwait  2.30  waiting until a time of the steady clock
 *   _dl_find_object         2.35  how libgcc finds the unwind table of an address
 *   gettid                  2.30
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

char __libc_single_threaded = 0;

uint32_t arc4random(void) {
  uint32_t value;
  if (getrandom(&value, sizeof value, 0) != (ssize_t)sizeof value) abort();
  return value;
}

pid_t gettid(void) { return (pid_t)syscall(SYS_gettid); }

/* glibc 2.28 waits by the condition variable's own clock, CLOCK_REALTIME in all of libstdc++'s: the rest of the time is moved there. A
 * clock that is set meanwhile makes the wait shorter or longer, as it did with every g++ before 10; callers look at their clock again. */
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const struct timespec* until) {
  if (clock == CLOCK_REALTIME) return pthread_cond_timedwait(condition, mutex, until);
  struct timespec now, wall;
  if (clock_gettime(clock, &now) != 0) return EINVAL;
  clock_gettime(CLOCK_REALTIME, &wall);
  int64_t left = (int64_t)(until->tv_sec - now.tv_sec) * 1000000000 + (until->tv_nsec - now.tv_nsec);
  if (left < 0) left = 0;
  left += wall.tv_nsec;
  wall.tv_sec += left / 1000000000;
  wall.tv_nsec = left % 1000000000;
  return pthread_cond_timedwait(condition, mutex, &wall);
}

struct search {
  uintptr_t address;
  struct dl_find_object* found;
};

static int look(struct dl_phdr_info* info, size_t size, void* data) {
  (void)size;
  struct search* search = data;
  uintptr_t begin = UINTPTR_MAX, end = 0;
  void* eh_frame = NULL;
  int inside = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* part = &info->dlpi_phdr[i];
    const uintptr_t from = info->dlpi_addr + part->p_vaddr;
    if (part->p_type == PT_GNU_EH_FRAME) eh_frame = (void*)from;
    if (part->p_type != PT_LOAD) continue;
    if (from < begin) begin = from;
    if (from + part->p_memsz > end) end = from + part->p_memsz;
    inside |= search->address >= from && search->address < from + part->p_memsz;
  }
  if (!inside || eh_frame == NULL) return 0;
  *search->found = (struct dl_find_object){
      .dlfo_map_start = (void*)begin, .dlfo_map_end = (void*)end, .dlfo_eh_frame = eh_frame};
  return 1;
}

int _dl_find_object(void* address, struct dl_find_object* found) {
  struct search search = {(uintptr_t)address, found};
  return dl_iterate_phdr(look, &search) == 1 ? 0 : -1;
}
