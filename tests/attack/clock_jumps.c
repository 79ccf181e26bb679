// Preloaded into a server: at each SIGUSR2 the time of day jumps, by an hour, a day back, ten years, twenty back, and to what it is. Other clocks go on.
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const long offsets[] = {0, 3600, -86400, 10L * 365 * 86400, -20L * 365 * 86400};
static atomic_uint place;

static long Offset(void) { return offsets[atomic_load(&place) % (sizeof offsets / sizeof offsets[0])]; }

int clock_gettime(clockid_t clock, struct timespec* time) {
  const int result = (int)syscall(SYS_clock_gettime, clock, time);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) time->tv_sec += Offset();
  return result;
}
int gettimeofday(struct timeval* time, void* zone) {
  const int result = (int)syscall(SYS_gettimeofday, time, zone);
  if (result == 0) time->tv_sec += Offset();
  return result;
}
time_t time(time_t* out) {
  struct timespec now = {0};
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != NULL) *out = now.tv_sec;
  return now.tv_sec;
}

static void Jump(int signal_number) {
  (void)signal_number;
  atomic_fetch_add(&place, 1);
}

__attribute__((constructor)) static void Begin(void) { signal(SIGUSR2, Jump); }
