// Recorded kernel launches as bytes with their arguments, comparable, and enqueued one after the other.
#include "backend/cuda/runtime/launch_list.h"

namespace dsv4::backend::cuda {

size_t LaunchList::Append(size_t num_bytes) {
  const size_t begin = bytes_.size();
  bytes_.resize(begin + (num_bytes + kLaunchArgumentAlignment - 1) / kLaunchArgumentAlignment *
                            kLaunchArgumentAlignment);
  return begin;
}

void LaunchList::BeginLaunch(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, bool overlaps) {
  const Header header = {.kernel = kernel,
                         .grid = {grid.x, grid.y, grid.z},
                         .block = {block.x, block.y, block.z},
                         .shared_bytes = static_cast<unsigned>(shared_bytes),
                         .overlaps = overlaps ? 1U : 0U};
  launches_.push_back({Append(sizeof(Header)), arguments_.size()});
  std::memcpy(bytes_.data() + launches_.back().header, &header, sizeof(Header));
}

void LaunchList::AddArgument(const LaunchArgument& argument) {
  arguments_.push_back(Append(argument.num_bytes));
  std::memcpy(bytes_.data() + arguments_.back(), argument.value, argument.num_bytes);
}

void LaunchList::SkipFirst() { launches_.erase(launches_.begin()); }

void LaunchList::Clear() {
  bytes_.clear();
  launches_.clear();
  arguments_.clear();
}

cudaError_t LaunchList::Enqueue(cudaStream_t stream, size_t* failed) const {
  std::vector<void*> pointers;
  pointers.reserve(arguments_.size());
  // CUDA takes the arguments as pointers to what it only reads.
  for (const size_t place : arguments_) pointers.push_back(const_cast<std::byte*>(bytes_.data() + place));
  pointers.push_back(nullptr);  // So that a launch without arguments has an address to point at.
  for (size_t i = 0; i < launches_.size(); ++i) {
    Header header;
    std::memcpy(&header, bytes_.data() + launches_[i].header, sizeof(Header));
    cudaLaunchAttribute overlap = {};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(header.grid[0], header.grid[1], header.grid[2]);
    config.blockDim = dim3(header.block[0], header.block[1], header.block[2]);
    config.dynamicSmemBytes = header.shared_bytes;
    config.stream = stream;
    config.attrs = &overlap;
    config.numAttrs = header.overlaps;
    const cudaError_t error =
        cudaLaunchKernelExC(&config, header.kernel, pointers.data() + launches_[i].first_argument);
    if (error != cudaSuccess) {
      *failed = i;
      return error;
    }
  }
  return cudaSuccess;
}

}  // namespace dsv4::backend::cuda
