// GraphCache: runs lists of launches, from CUDA graphs once a list has come twice. A graph is replayed only
// for a list whose bytes equal those it was made from, so a replay does what launching would do.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "backend/cuda/runtime/launch_list.h"

namespace dsv4::backend::cuda {

struct LaunchCounters {
  int64_t launches = 0;         // Kernels, however they got to the device.
  int64_t lists = 0;            // Non-empty lists run.
  int64_t replayed_lists = 0;   // Lists run by a graph.
  int64_t graphs_captured = 0;  // Graphs made.
};

// A list as a graph that can be launched, with the bytes that it was made from.
struct CudaGraph {
  uint64_t key = 0;
  std::vector<std::byte> bytes;
  size_t num_launches = 0;
  cudaGraphExec_t executable = nullptr;

  CudaGraph() = default;
  ~CudaGraph();
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
};

class GraphCache {
 public:
  GraphCache() = default;
  ~GraphCache();
  GraphCache(const GraphCache&) = delete;
  GraphCache& operator=(const GraphCache&) = delete;

  // Queues the list's work on `stream`. On an error *failed is the launch that was refused, or list.size() if
  // none can be named. Nothing of a list that failed to become a graph has been queued. *graph is what ran,
  // null where that was none.
  cudaError_t Run(const LaunchList& list, bool use_graphs, cudaStream_t stream, size_t* failed,
                  std::shared_ptr<const CudaGraph>* graph);
  // Queues again what Run did for such a graph, or for a list that becomes none.
  cudaError_t RunAgain(const CudaGraph& graph, cudaStream_t stream);
  cudaError_t RunAgain(const LaunchList& list, cudaStream_t stream);
  // Whether Run makes a graph of it, sooner or later.
  static bool BecomesGraph(const LaunchList& list, bool use_graphs) {
    return use_graphs && list.size() >= kMinLaunches;
  }

  const LaunchCounters& counters() const { return counters_; }

 private:
  // A decode step of 43 layers is about ten lists, in a few variants each.
  static constexpr size_t kMaxGraphs = 1024;
  // Shorter lists are not worth one.
  static constexpr size_t kMinLaunches = 4;

  using Graphs = std::list<std::shared_ptr<CudaGraph>>;  // The one used last is first.

  cudaError_t Capture(const LaunchList& list, cudaGraphExec_t* executable, size_t* failed);
  void Drop(Graphs::iterator graph);

  cudaStream_t capture_stream_ = nullptr;
  Graphs graphs_;
  std::unordered_map<uint64_t, Graphs::iterator> by_key_;
  std::unordered_set<uint64_t> seen_once_;
  LaunchCounters counters_;
};

}  // namespace dsv4::backend::cuda
