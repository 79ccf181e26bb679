// Settings of tests for the runtime of no device (null_runtime.cc).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dsv4::null_runtime {

// Copies and fills of more bytes do nothing. They are of weights, which are not looked at and may be larger
// than memory.
extern std::atomic<size_t> max_touched_bytes;
// More bytes of the host's memory at once are not pinned.
extern std::atomic<size_t> max_pinned_bytes;
// So many more blocks are registered, and then no more.
extern std::atomic<int> registrations_left;
extern std::atomic<int> registered;       // Blocks that are registered now.
extern std::atomic<int> registration_ms;  // Time of one that does not fail.
// More bytes of the device at once are refused.
extern std::atomic<size_t> max_device_bytes;
// Bytes that pools hold unused, until they are trimmed.
extern std::atomic<uint64_t> idle_pool_bytes;

// Bytes that were copied from the host in pieces of more than these, since the program began.
inline constexpr size_t kCountedCopy = 4096;
extern std::atomic<int64_t> copied_to_device;

// The device that it says it has: an H200 unless a test changes it before a backend is made. Launches with
// more shared memory are refused, as a device refuses them, and so are those with more than their kernel was
// allowed last.
struct DeviceSaid {
  int capability = 90;  // 90 is 9.0.
  int code = 90;        // Capability that its code was compiled for.
  int num_sms = 132;
  int shared_bytes = 227 * 1024;  // Bytes of a block.
};
extern DeviceSaid device;

// Launches that may begin before the one in front of them has ended, since the program began.
extern std::atomic<int64_t> overlapped_launches;

// Requests to streams, in the order of the calls. Launches of a graph are those of its capture.
struct StreamCall {
  enum class Kind { kLaunch, kCopyToDevice, kRecord, kWait, kSynchronize };
  Kind kind = Kind::kLaunch;
  const void* stream = nullptr;
  const void* event = nullptr;  // For kRecord and kWait.
  size_t num_bytes = 0;         // For kCopyToDevice, which have more than kCountedCopy.
};
void WatchStreams();
std::vector<StreamCall> TakeStreamCalls();  // Since then, and ends it.

}  // namespace dsv4::null_runtime
