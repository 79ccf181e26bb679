// Stand-in for the CUDA backend in a build without it.
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/groups/cuda_group.h"

namespace dsv4::backend {

std::vector<CudaDeviceInfo> CudaDevices() { return {}; }

bool HasCodeFor(const CudaDeviceInfo&) { return false; }
std::string MachineCodeOfBuild() { return {}; }
std::string CudaFault() { return {}; }

Result<ops::Backend> MakeCudaBackend(const CudaOptions&) {
  return Error(FailedPrecondition(
      "backend cuda: not in this build; it has: cpu, reference (./dev build --cuda makes one with it)"));
}

Result<std::unique_ptr<comm::Communicator>> MakeCudaGroup(const ops::Backend&, comm::Communicator&,
                                                          const CudaGroupOptions&) {
  return Error(FailedPrecondition("backend cuda: not in this build, so it has no groups of devices"));
}

Result<double> HostToDeviceRate(const ops::Backend&) {
  return Error(FailedPrecondition("backend cuda: not in this build, so nothing is copied to its device"));
}

ExpertCacheCounters ExpertCacheCountersOf(const ops::Backend&) { return {}; }
Status SetExpertSlots(const ops::Backend&, int64_t) { return {}; }
Status ForgetWeights(const ops::Backend&) { return {}; }
PinnedLoad PinnedLoadOf(const ops::Backend&) { return {}; }

HostExpertCounters HostExpertCountersOf(const ops::Backend&) { return {}; }

std::vector<CudaChoice> ChoicesOf(const ops::Backend&) { return {}; }

Result<CudaRoom> RoomOf(int) {
  return Error(
      FailedPrecondition("backend cuda: not in this build, so the memory of its device cannot be read"));
}

}  // namespace dsv4::backend
