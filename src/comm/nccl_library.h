// NCCL, opened when a group of GPUs is made. A binary thereby runs where NCCL is not installed, and its
// absence is an error with its name. Declared here is the part that we call, by NCCL's stable C interface
// (from 2.18 on).
#pragma once

#include <cstddef>
#include <string>

#include "base/status.h"

namespace dsv4::comm {

struct NcclCommunicator;  // ncclComm, opaque.

struct NcclUniqueId {
  char bytes[128] = {};
};

// Codes that NCCL's calls return, as far as we tell it apart.
inline constexpr int kNcclSuccess = 0;
inline constexpr int kNcclInProgress = 7;
inline constexpr int kNcclBytes = 0;  // The data type ncclInt8: nothing is added up by NCCL.

// The members of ncclConfig_t up to version 2.18, which every later one begins with.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xCAFEBEEF;
  unsigned version = 21800;
  int blocking = 0;
  int cga_cluster_size = -2147483647 - 1;  // Not set, as those below.
  int min_blocks = -2147483647 - 1;
  int max_blocks = -2147483647 - 1;
  const char* net_name = nullptr;
  int split_share = -2147483647 - 1;
};

// NCCL's functions, in its own order of arguments; `stream` is a cudaStream_t.
struct NcclLibrary {
  int version = 0;  // 22809 is 2.28.9.
  std::string path;

  int (*get_unique_id)(NcclUniqueId* id) = nullptr;
  int (*init_rank)(NcclCommunicator** comm, int num_ranks, NcclUniqueId id, int rank,
                   NcclConfig* config) = nullptr;
  int (*finalize)(NcclCommunicator* comm) = nullptr;
  int (*destroy)(NcclCommunicator* comm) = nullptr;
  int (*abort)(NcclCommunicator* comm) = nullptr;
  int (*get_async_error)(NcclCommunicator* comm, int* error) = nullptr;
  const char* (*get_error_string)(int result) = nullptr;
  const char* (*get_last_error)(NcclCommunicator* comm) = nullptr;
  int (*all_gather)(const void* send, void* receive, size_t count, int type, NcclCommunicator* comm,
                    void* stream) = nullptr;
  int (*broadcast)(const void* send, void* receive, size_t count, int type, int root, NcclCommunicator* comm,
                   void* stream) = nullptr;
  int (*send)(const void* data, size_t count, int type, int peer, NcclCommunicator* comm,
              void* stream) = nullptr;
  int (*receive)(void* data, size_t count, int type, int peer, NcclCommunicator* comm,
                 void* stream) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;

  // Opens `path`, or where it is empty DSV4_NCCL_LIBRARY, or else libnccl.so.2 where the system finds it. It
  // stays open. NVLink multicast is off from then on, unless NCCL_NVLS_ENABLE says something of its own.
  // FailedPrecondition says which file, and what it is not: there, NCCL, or new enough.
  static Result<NcclLibrary> Open(const std::string& path = {});
};

}  // namespace dsv4::comm
