// Times of each kernel and copy on the device, for any unchanged program that uses CUDA. It is a library that
// the driver loads into the program and that asks CUPTI.
//
//   CUDA_INJECTION64_PATH=build/cuda/libkernel_timeline.so DSV4_CUDA_TIMELINE=DIRECTORY PROGRAM ...
//
// writes DIRECTORY/timeline.RANK.txt (RANK as in the environment, 0 without), a line for each as it ends:
//
//   begin_ns end_ns name grid
//
// tools/kernel_timeline.py reads it. Kernels that may start early begin before they can do anything, so it is
// their ends that tell what takes long. Recording costs some per cent of a step.
#include <cupti.h>
#include <cxxabi.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

namespace {

constexpr size_t kBufferBytes = size_t{8} << 20;
constexpr uint32_t kFlushMilliseconds = 100;

FILE* timeline = nullptr;

// Without namespaces, parameters and blanks.
std::string ShortName(const char* mangled) {
  int status = 0;
  char* const demangled = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::string name = status == 0 ? demangled : mangled;
  std::free(demangled);
  for (const std::string_view prefix : {"dsv4::backend::cuda::", "(anonymous namespace)::", "void "}) {
    for (size_t at = name.find(prefix); at != std::string::npos; at = name.find(prefix))
      name.erase(at, prefix.size());
  }
  const size_t template_end = name.find(">(");
  const size_t end = template_end == std::string::npos ? name.find('(') : template_end + 1;
  if (end != std::string::npos) name.resize(end);
  std::erase(name, ' ');
  return name;
}

void Write(const CUpti_Activity& record) {
  // Names of kernels, by their address. Never destroyed: the last records come while the program ends.
  static auto& names = *new std::unordered_map<const char*, std::string>;
  if (record.kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
    const auto& kernel = reinterpret_cast<const CUpti_ActivityKernel10&>(record);
    const auto [name, is_new] = names.try_emplace(kernel.name);
    if (is_new) name->second = ShortName(kernel.name);
    std::fprintf(timeline, "%llu %llu %s %d,%d,%d\n", static_cast<unsigned long long>(kernel.start),
                 static_cast<unsigned long long>(kernel.end), name->second.c_str(), kernel.gridX,
                 kernel.gridY, kernel.gridZ);
  } else if (record.kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
    const auto& copy = reinterpret_cast<const CUpti_ActivityMemcpy6&>(record);
    std::fprintf(timeline, "%llu %llu copy %llu\n", static_cast<unsigned long long>(copy.start),
                 static_cast<unsigned long long>(copy.end), static_cast<unsigned long long>(copy.bytes));
  }
}

void CUPTIAPI NewBuffer(uint8_t** buffer, size_t* num_bytes, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *num_bytes = *buffer == nullptr ? 0 : kBufferBytes;
  *max_records = 0;
}

void CUPTIAPI BufferIsFull(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid_bytes) {
  static auto& mutex = *new std::mutex;
  const std::lock_guard lock(mutex);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == CUPTI_SUCCESS) Write(*record);
  std::free(buffer);
  std::fflush(timeline);
}

bool Did(CUptiResult result, const char* what) {
  if (result == CUPTI_SUCCESS) return true;
  const char* text = nullptr;
  cuptiGetResultString(result, &text);
  std::fprintf(stderr, "kernel_timeline: %s: %s\n", what, text == nullptr ? "unknown error" : text);
  return false;
}

}  // namespace

// Called by the driver; 1: all is well.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  const char* const directory = std::getenv("DSV4_CUDA_TIMELINE");
  if (directory == nullptr) {
    std::fprintf(stderr, "kernel_timeline: DSV4_CUDA_TIMELINE names no directory, nothing is recorded\n");
    return 1;
  }
  const char* const rank = std::getenv("RANK");
  const std::string path = std::string(directory) + "/timeline." + (rank == nullptr ? "0" : rank) + ".txt";
  timeline = std::fopen(path.c_str(), "w");
  if (timeline == nullptr) {
    std::fprintf(stderr, "kernel_timeline: %s: %s, nothing is recorded\n", path.c_str(),
                 std::strerror(errno));
    return 1;
  }
  if (Did(cuptiActivityRegisterCallbacks(NewBuffer, BufferIsFull), "callbacks") &&
      Did(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), "kernels") &&
      Did(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY), "copies") &&
      Did(cuptiActivityFlushPeriod(kFlushMilliseconds), "flushing")) {
    std::atexit([] { cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED); });
  }
  return 1;
}
