// Decision whether a waiting rank may spin: two cores for every rank of the machine.
#include "comm/waiting.h"

#include <sched.h>

namespace dsv4::comm {

bool HasTwoCoresEach(int num_ranks) {
  cpu_set_t own;
  CPU_ZERO(&own);
  return ::sched_getaffinity(0, sizeof(own), &own) == 0 && CPU_COUNT(&own) >= 2 * num_ranks;
}

}  // namespace dsv4::comm
