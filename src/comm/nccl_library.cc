// NCCL's functions by dlopen, with an error that names what was looked for.
#include "comm/nccl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>

namespace dsv4::comm {
namespace {

template <typename Function>
Status Find(void* library, const char* name, const std::string& path, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function != nullptr) return {};
  return FailedPrecondition(fmt::format("NCCL: {} has no {}; is it NCCL 2.18 or later?", path, name));
}

}  // namespace

Result<NcclLibrary> NcclLibrary::Open(const std::string& path) {
  NcclLibrary nccl;
  nccl.path = path;
  if (nccl.path.empty()) {
    const char* const named = std::getenv("DSV4_NCCL_LIBRARY");
    nccl.path = named != nullptr && *named != '\0' ? named : "libnccl.so.2";
  }
  // NVLink multicast, which we have no use for, can take a host's GPUs out of service.
  (void)::setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/0);
  void* const library = ::dlopen(nccl.path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = ::dlerror();
    return Error(
        FailedPrecondition(fmt::format("NCCL, which GPUs that are no peers and stages of a pipeline need, "
                                       "cannot be opened: {}; install libnccl.so.2, or name it in "
                                       "DSV4_NCCL_LIBRARY",
                                       reason != nullptr ? reason : nccl.path)));
  }
  int (*get_version)(int*) = nullptr;
  const auto find = [&](const char* name, auto& function) {
    return Find(library, name, nccl.path, function);
  };
  DSV4_TRY(find("ncclGetVersion", get_version));
  DSV4_TRY(find("ncclGetUniqueId", nccl.get_unique_id));
  DSV4_TRY(find("ncclCommInitRankConfig", nccl.init_rank));
  DSV4_TRY(find("ncclCommFinalize", nccl.finalize));
  DSV4_TRY(find("ncclCommDestroy", nccl.destroy));
  DSV4_TRY(find("ncclCommAbort", nccl.abort));
  DSV4_TRY(find("ncclCommGetAsyncError", nccl.get_async_error));
  DSV4_TRY(find("ncclGetErrorString", nccl.get_error_string));
  DSV4_TRY(find("ncclGetLastError", nccl.get_last_error));
  DSV4_TRY(find("ncclAllGather", nccl.all_gather));
  DSV4_TRY(find("ncclBroadcast", nccl.broadcast));
  DSV4_TRY(find("ncclSend", nccl.send));
  DSV4_TRY(find("ncclRecv", nccl.receive));
  DSV4_TRY(find("ncclGroupStart", nccl.group_start));
  DSV4_TRY(find("ncclGroupEnd", nccl.group_end));
  if (get_version(&nccl.version) != kNcclSuccess || nccl.version < 21800) {
    return Error(FailedPrecondition(
        fmt::format("NCCL: {} is of version {}, want 21800 (2.18) or later", nccl.path, nccl.version)));
  }
  return nccl;
}

}  // namespace dsv4::comm
