// GETs over HTTP and HTTPS by libcurl, several at a time, on the caller's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace dsv4::hub {

// Receiver of a body. An error ends the transfer and becomes its outcome; Unavailable is worth another try.
class BodySink {
 public:
  virtual ~BodySink() = default;
  // Before the first byte of a 200 (from 0) or a 206. `total` is the length of the whole file, -1 where the
  // server does not say.
  virtual Status Begin(int64_t from, int64_t total) = 0;
  virtual Status Write(std::string_view bytes) = 0;
};

struct TransferRequest {
  std::string url;
  std::string token;  // Sent to the host of `url` alone, never to one that it redirects to. Empty: none.
  int64_t from = 0;   // The first byte wanted.
  double stall_seconds = 30;  // Less than 1 KiB a second for so long ends the transfer.
};

struct TransferOutcome {
  Status status;           // Ok after a whole body.
  bool retry = false;      // Another try may go better.
  bool unnamed = false;    // The host's name, or a proxy's, has no address: many tries do not give it one.
  double retry_after = 0;  // Seconds that the server asked for; 0: none.
};

class Transfers {
 public:
  static Result<std::unique_ptr<Transfers>> Make();
  virtual ~Transfers() = default;

  // `sink` lives until the outcome is handed out or this ends.
  virtual void Start(int id, const TransferRequest& request, BodySink& sink) = 0;

  struct Finished {
    int id;
    TransferOutcome outcome;
  };
  // Moves bytes for up to `seconds`, less if something ends. Returns what ended.
  virtual std::vector<Finished> Run(double seconds) = 0;
};

}  // namespace dsv4::hub
