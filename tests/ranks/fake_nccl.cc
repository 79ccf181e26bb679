// libfake_nccl.so: the calls that dsv4 makes of NCCL, for ranks that are threads of one process with a
// FakeStream each. It keeps NCCL's manners. Calls of a group that does not block return at once and are asked
// about. Exchanges begin when the stream gets there, and sends and receives of a group go on together. Only
// ncclCommAbort ends the wait for a rank that does not come.
#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "comm/nccl_library.h"
#include "tests/ranks/fake_device.h"

namespace {

using dsv4::comm::kNcclInProgress;
using dsv4::comm::kNcclSuccess;
using dsv4::comm::NcclConfig;
using dsv4::comm::NcclUniqueId;
using dsv4::testing::FakeStream;
constexpr int kInternalError = 3;
constexpr int kInvalidArgument = 4;
constexpr int kInvalidUsage = 5;

struct Parcel {
  const void* data;
  size_t size;
  bool taken = false;
};

// All ranks of one id.
struct World {
  explicit World(int num_ranks) : size(num_ranks) {}
  const int size;
  int joined = 0;
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<int, int>, std::deque<Parcel*>> in_flight;  // By sender and receiver.
};

struct Rank {
  std::shared_ptr<World> world;
  int number = 0;
  std::atomic<bool> aborted = false;
  std::atomic<int> error = kNcclSuccess;
};

std::mutex worlds_mutex;
std::map<std::string, std::shared_ptr<World>> worlds;
std::atomic<int> next_id = 0;
std::atomic<int> refused_sends = 0;

struct Operation {
  bool send;
  void* data;
  size_t size;
  int peer;
};

// Everything of a group, at once: first all is offered, then taken, then waited for.
void Exchange(const std::shared_ptr<Rank>& rank, const std::vector<Operation>& operations) {
  World& world = *rank->world;
  std::deque<Parcel> parcels;
  std::unique_lock lock(world.mutex);
  for (const Operation& operation : operations) {
    if (!operation.send) continue;
    Parcel& parcel = parcels.emplace_back(Parcel{operation.data, operation.size});
    world.in_flight[{rank->number, operation.peer}].push_back(&parcel);
  }
  world.changed.notify_all();
  for (const Operation& operation : operations) {
    if (operation.send) continue;
    auto& box = world.in_flight[{operation.peer, rank->number}];
    world.changed.wait(lock, [&] { return rank->aborted || !box.empty(); });
    if (rank->aborted) break;
    Parcel& parcel = *box.front();
    box.pop_front();
    if (parcel.size != operation.size) rank->error = kInvalidUsage;
    std::memcpy(operation.data, parcel.data, std::min(parcel.size, operation.size));
    parcel.taken = true;
    world.changed.notify_all();
  }
  world.changed.wait(lock, [&] {
    return rank->aborted || std::ranges::all_of(parcels, [](const Parcel& parcel) { return parcel.taken; });
  });
  for (auto& [pair, box] : world.in_flight) {  // No receiver may find what is no longer there.
    if (pair.first == rank->number) std::erase_if(box, [&](const Parcel* one) { return !one->taken; });
  }
}

struct Group {
  int depth = 0;
  std::shared_ptr<Rank> rank;
  FakeStream* stream = nullptr;
  std::vector<Operation> operations;
};
thread_local Group group;

}  // namespace

namespace dsv4::comm {
struct NcclCommunicator {
  std::shared_ptr<Rank> rank;
};
}  // namespace dsv4::comm

using dsv4::comm::NcclCommunicator;

namespace {

int Put(NcclCommunicator* comm, void* stream, std::vector<Operation> operations) {
  static_cast<FakeStream*>(stream)->Put(
      [rank = comm->rank, operations = std::move(operations)] { Exchange(rank, operations); });
  return kNcclInProgress;
}

int Add(NcclCommunicator* comm, void* stream, const Operation& operation) {
  if (operation.peer < 0 || operation.peer >= comm->rank->world->size) return kInvalidArgument;
  if (group.depth == 0) return Put(comm, stream, {operation});
  group.rank = comm->rank;
  group.stream = static_cast<FakeStream*>(stream);
  group.operations.push_back(operation);
  return kNcclInProgress;
}

}  // namespace

extern "C" {

// The next so many sends of the process fail.
void FakeNcclRefuse(int count) { refused_sends = count; }

int ncclGetVersion(int* version) {
  *version = 22809;
  return kNcclSuccess;
}
int ncclGetUniqueId(NcclUniqueId* id) {
  const std::string text = "fake " + std::to_string(next_id++);
  *id = {};
  std::copy(text.begin(), text.end(), id->bytes);
  return kNcclSuccess;
}
int ncclCommInitRankConfig(NcclCommunicator** comm, int num_ranks, NcclUniqueId id, int rank,
                           NcclConfig* config) {
  if (config->magic != 0xCAFEBEEF || config->size != sizeof(NcclConfig) || config->blocking != 0)
    return kInvalidArgument;
  const std::lock_guard lock(worlds_mutex);
  auto& world = worlds[id.bytes];
  if (world == nullptr) world = std::make_shared<World>(num_ranks);
  if (world->size != num_ranks) return kInvalidArgument;
  *comm = new NcclCommunicator{std::make_shared<Rank>()};
  (*comm)->rank->world = world;
  (*comm)->rank->number = rank;
  const std::lock_guard world_lock(world->mutex);
  ++world->joined;
  return kNcclInProgress;
}
int ncclCommGetAsyncError(NcclCommunicator* comm, int* error) {
  World& world = *comm->rank->world;
  const std::lock_guard lock(world.mutex);
  *error = world.joined < world.size ? kNcclInProgress : comm->rank->error.load();
  return kNcclSuccess;
}
int ncclCommFinalize(NcclCommunicator*) { return kNcclInProgress; }
int ncclCommDestroy(NcclCommunicator* comm) {
  delete comm;
  return kNcclSuccess;
}
int ncclCommAbort(NcclCommunicator* comm) {
  {
    const std::lock_guard lock(comm->rank->world->mutex);
    comm->rank->aborted = true;
  }
  comm->rank->world->changed.notify_all();
  delete comm;
  return kNcclSuccess;
}
const char* ncclGetErrorString(int result) {
  return result == kInternalError ? "internal error" : "invalid usage";
}
const char* ncclGetLastError(NcclCommunicator*) { return "as the test wanted"; }

int ncclSend(const void* data, size_t count, int, int peer, NcclCommunicator* comm, void* stream) {
  if (refused_sends > 0 && refused_sends.fetch_sub(1) > 0) return kInternalError;
  return Add(comm, stream, {true, const_cast<void*>(data), count, peer});
}
int ncclRecv(void* data, size_t count, int, int peer, NcclCommunicator* comm, void* stream) {
  return Add(comm, stream, {false, data, count, peer});
}
int ncclAllGather(const void* send, void* receive, size_t count, int, NcclCommunicator* comm, void* stream) {
  std::vector<Operation> operations;
  for (int peer = 0; peer < comm->rank->world->size; ++peer) {
    operations.push_back({true, const_cast<void*>(send), count, peer});
    operations.push_back(
        {false, static_cast<std::byte*>(receive) + static_cast<size_t>(peer) * count, count, peer});
  }
  return Put(comm, stream, std::move(operations));
}
int ncclBroadcast(const void* send, void* receive, size_t count, int, int root, NcclCommunicator* comm,
                  void* stream) {
  std::vector<Operation> operations;
  if (comm->rank->number == root) {
    for (int peer = 0; peer < comm->rank->world->size; ++peer) {
      if (peer != root) operations.push_back({true, const_cast<void*>(send), count, peer});
    }
  } else {
    operations.push_back({false, receive, count, root});
  }
  return Put(comm, stream, std::move(operations));
}
int ncclGroupStart() {
  ++group.depth;
  return kNcclSuccess;
}
int ncclGroupEnd() {
  if (--group.depth > 0 || group.rank == nullptr) return kNcclSuccess;
  group.stream->Put([rank = std::move(group.rank), operations = std::move(group.operations)] {
    Exchange(rank, operations);
  });
  group = {};
  return kNcclInProgress;
}

}  // extern "C"
