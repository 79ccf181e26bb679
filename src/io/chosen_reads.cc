#include "io/chosen_reads.h"

namespace dsv4::io {

void ChosenReads::Ask(Ranges ranges) {
  if (!started()) return;
  int64_t num_bytes = 0;
  for (const std::span<const std::byte> range : ranges) num_bytes += static_cast<int64_t>(range.size());
  num_bytes_.fetch_add(num_bytes, std::memory_order_relaxed);
  read_ahead_.Add(ranges);
}

}  // namespace dsv4::io
