// Figures as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace dsv4::apps {

// "512 B", "1.25 KB", "33.60 GB": units of 1000.
std::string ReadableBytes(double bytes);
inline std::string ReadableBytes(int64_t bytes) { return ReadableBytes(static_cast<double>(bytes)); }

// "45.1 GB in 8.3 s, 5.4 GB/s": what has been copied to a device.
std::string LoadSpeed(int64_t num_bytes, double seconds);

}  // namespace dsv4::apps
