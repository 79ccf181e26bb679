// HostExperts: routed experts that stay in host memory, multiplied there for a device that does the rest of
// the layer.
//
// Device and host meet in memory that both see, without a launch, a call or a wait in between. The device
// writes tokens, choices and weights to a payload, and the number of its request to `asked`. A thread of the
// host watches it and multiplies, by op expert_terms of a backend of the host, on that backend's threads. It
// writes the terms to the payload, and the number to `answered`. The device waits for it as long as it likes.
//
// A term is the result of the host's backend. It has the same bits from run to run, for any number of threads
// and with any other requests.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ops/op_table.h"
#include "tiers/host_exchange.h"

namespace dsv4::tiers {

struct HostExpertsOptions {
  ops::Backend backend;  // The host's backend, this object's alone.
  // Memory that the device reads and writes too; zeroed or not.
  std::function<Result<Buffer>(size_t)> allocate;
};

struct HostExpertsCounters {
  int64_t requests = 0;
  int64_t rows = 0;
  int64_t experts = 0;  // Experts that requests chose, each counted once a request.
  double seconds = 0;   // From seeing requests to answering them.
};

class HostExperts {
 public:
  // Rows of a request at most. Four times as many would make a prompt read experts a quarter as often; no GPU
  // has run that yet.
  static constexpr int64_t kMaxRows = 512;

  // Unimplemented without op expert_terms; the errors of `allocate`.
  static Result<std::unique_ptr<HostExperts>> Create(HostExpertsOptions options);
  // No request is in flight.
  ~HostExperts();
  HostExperts(const HostExperts&) = delete;
  HostExperts& operator=(const HostExperts&) = delete;

  // Experts of a layer, by the indices that requests name; at least one, in host memory. Gives the number of
  // the layer.
  int32_t AddLayer(std::vector<ops::ExpertWeights> experts);
  // The same for the same shape.
  Result<Payload> PayloadFor(DType dtype, int64_t dim, int64_t top_k);
  ExchangeWords* words() const { return words_; }

  // Why the last request failed that did.
  std::string failure() const;
  HostExpertsCounters counters() const;

 private:
  explicit HostExperts(HostExpertsOptions options) : options_(std::move(options)) {}
  void Work(const std::stop_token& stop);
  // False: stopped.
  bool AwaitRequest(const std::stop_token& stop, uint32_t seen) const;
  // Says of how many experts the answer is.
  Status Answer(int64_t& num_chosen);

  const HostExpertsOptions options_;
  Buffer words_memory_;
  ExchangeWords* words_ = nullptr;
  mutable std::mutex mutex_;  // Guards what follows.
  std::deque<std::vector<ops::ExpertWeights>> layers_;
  std::deque<Payload> payloads_;
  std::vector<Buffer> memory_;
  std::string failure_;
  HostExpertsCounters counters_;
  std::jthread worker_;  // Last: it uses all of this.
};

}  // namespace dsv4::tiers
