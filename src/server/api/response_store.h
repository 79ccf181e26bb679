// Responses that were asked to be kept (/v1/responses with `store`), so that a later request can go on from
// one by its id. Bounded: the ones that were used longest ago go. In memory, or in files of a directory,
// which outlive the process.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "chat/json_value.h"

namespace dsv4::server {

struct ResponseStoreOptions {
  std::string directory;                  // Empty: in memory.
  int64_t max_bytes = int64_t{64} << 20;  // Bytes of all; 0: nothing is kept.
};

struct StoredResponse {
  std::string previous;   // The id of the response that it followed; or empty.
  chat::JsonValue input;  // The items of its own request: a list.
  chat::JsonValue reply;  // As it was sent.
};

// The id of an item of the output of `response`: "msg_", what follows "resp_" there, and the item's number.
std::string ItemId(std::string_view prefix, std::string_view response, size_t index);
// The response that the item's id names; empty: none.
std::string ResponseOfItem(std::string_view item);

// From any thread.
class ResponseStore {
 public:
  // Makes the directory, for its owner alone, and reads what is in it. Errors name it.
  static Result<std::unique_ptr<ResponseStore>> Open(ResponseStoreOptions options);
  // Writes what waits to be written.
  ~ResponseStore();

  bool enabled() const;
  // Keys of clients are mixed with it to what tells their responses apart; the same for a directory at every
  // start.
  const std::string& secret() const;

  // Keeps it for `owner`. Files are written by a thread of the store. What a disk does not take stays in
  // memory, is tried again, and costs one line in the log.
  void Put(uint64_t owner, const std::string& id, const StoredResponse& response);
  // NotFound also for another owner's.
  Result<StoredResponse> Get(uint64_t owner, const std::string& id);
  Status Erase(uint64_t owner, const std::string& id);
  // All items of a conversation, up to and with the output of `id`. NotFound names the response that is gone.
  Result<std::vector<chat::JsonValue>> Conversation(uint64_t owner, const std::string& id);

 private:
  class Impl;
  explicit ResponseStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsv4::server
