// A group whose exchanges are observed: the kind and bytes of each, and the time of this rank's call, waiting
// for others included. The other ranks need not look.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "comm/communicator.h"

namespace dsv4::comm {

struct Exchange {
  const char* what = "";  // "all-reduce"
  int num_ranks = 0;
  int64_t num_bytes = 0;  // Bytes of the sum, of what is gathered, of what goes to all, of the message.
  double seconds = 0;
};

// May be changed between two exchanges; without `seen` they are let through as they are.
struct ExchangeHooks {
  std::function<void(const Exchange&)> seen;
  // Called in front of an exchange and behind it: returns when what is queued on a device is done. May be
  // empty.
  std::function<Status()> settle;
};

// Its parts are looked at too.
std::unique_ptr<Communicator> Observe(std::shared_ptr<Communicator> group,
                                      std::shared_ptr<const ExchangeHooks> hooks);

}  // namespace dsv4::comm
