// Cache of CUDA graphs by the bytes of launch lists: captured on second sight, replayed from then on.
#include "backend/cuda/runtime/graph_cache.h"

#include <xxhash.h>

#include <cstring>
#include <iterator>

namespace dsv4::backend::cuda {
namespace {

bool SameBytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace

CudaGraph::~CudaGraph() {
  if (executable != nullptr) cudaGraphExecDestroy(executable);
}

GraphCache::~GraphCache() {
  if (capture_stream_ != nullptr) cudaStreamDestroy(capture_stream_);
}

void GraphCache::Drop(Graphs::iterator graph) {
  by_key_.erase((*graph)->key);
  graphs_.erase(graph);
}

cudaError_t GraphCache::Capture(const LaunchList& list, cudaGraphExec_t* executable, size_t* failed) {
  *failed = list.size();
  cudaError_t error = cudaSuccess;
  if (capture_stream_ == nullptr) error = cudaStreamCreateWithFlags(&capture_stream_, cudaStreamNonBlocking);
  if (error == cudaSuccess) error = cudaStreamBeginCapture(capture_stream_, cudaStreamCaptureModeThreadLocal);
  if (error != cudaSuccess) return error;
  const cudaError_t launched = list.Enqueue(capture_stream_, failed);
  cudaGraph_t graph = nullptr;
  error = cudaStreamEndCapture(capture_stream_, &graph);
  if (launched != cudaSuccess) error = launched;
  if (error == cudaSuccess) error = cudaGraphInstantiate(executable, graph, 0);
  if (graph != nullptr) cudaGraphDestroy(graph);
  return error;
}

cudaError_t GraphCache::Run(const LaunchList& list, bool use_graphs, cudaStream_t stream, size_t* failed,
                            std::shared_ptr<const CudaGraph>* graph) {
  *failed = list.size();
  graph->reset();
  if (list.size() == 0) return cudaSuccess;
  counters_.launches += static_cast<int64_t>(list.size());
  ++counters_.lists;
  if (!BecomesGraph(list, use_graphs)) return list.Enqueue(stream, failed);

  const std::span<const std::byte> bytes = list.bytes();
  const uint64_t key = XXH3_64bits(bytes.data(), bytes.size());
  auto found = by_key_.find(key);
  if (found != by_key_.end() && !SameBytes((*found->second)->bytes, bytes)) {
    Drop(found->second);
    found = by_key_.end();
  }
  if (found == by_key_.end()) {
    if (seen_once_.erase(key) == 0) {
      // Prompts of ever new lengths leave their keys behind.
      if (seen_once_.size() >= 16 * kMaxGraphs) seen_once_.clear();
      seen_once_.insert(key);
      return list.Enqueue(stream, failed);
    }
    auto made = std::make_shared<CudaGraph>();
    made->key = key;
    made->bytes.assign(bytes.begin(), bytes.end());
    made->num_launches = list.size();
    const cudaError_t error = Capture(list, &made->executable, failed);
    if (error != cudaSuccess) return error;
    ++counters_.graphs_captured;
    if (graphs_.size() >= kMaxGraphs) Drop(std::prev(graphs_.end()));
    graphs_.push_front(std::move(made));
    found = by_key_.emplace(key, graphs_.begin()).first;
  }
  graphs_.splice(graphs_.begin(), graphs_, found->second);
  ++counters_.replayed_lists;
  *graph = *found->second;
  return cudaGraphLaunch((*graph)->executable, stream);
}

cudaError_t GraphCache::RunAgain(const CudaGraph& graph, cudaStream_t stream) {
  counters_.launches += static_cast<int64_t>(graph.num_launches);
  ++counters_.lists;
  ++counters_.replayed_lists;
  return cudaGraphLaunch(graph.executable, stream);
}

cudaError_t GraphCache::RunAgain(const LaunchList& list, cudaStream_t stream) {
  counters_.launches += static_cast<int64_t>(list.size());
  ++counters_.lists;
  size_t failed = 0;
  return list.Enqueue(stream, &failed);
}

}  // namespace dsv4::backend::cuda
