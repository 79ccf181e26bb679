// A file of the cache while it comes: ETAG.incomplete, locked, hashed as it grows, renamed to ETAG when its
// digest is right.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "hub/digest.h"
#include "hub/listing.h"
#include "hub/transfer.h"

namespace dsv4::hub {

class PartialFile final : public BodySink {
 public:
  // In `repository`, the folder of RepositoryFolder. Null when another process has it. `again`: a whole file
  // is taken back and hashed anew.
  static Result<std::unique_ptr<PartialFile>> Open(const std::filesystem::path& repository,
                                                   const RemoteFile& file, bool again);
  ~PartialFile() override;
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  // The file was whole before Open.
  bool was_whole() const { return was_whole_; }
  int64_t size() const { return size_; }  // Bytes that are there, hashed or not.
  // Hashes some more of what lay there; true when all of it is.
  Result<bool> HashSome();

  Status Begin(int64_t from, int64_t total) override;
  Status Write(std::string_view bytes) override;

  // Empties the file.
  Status Restart();
  // Ok: the file has its name. Unavailable: bytes are missing. DataLoss: the digest is wrong; the file is
  // empty again.
  Status Finish();

 private:
  PartialFile(std::filesystem::path blob, std::filesystem::path incomplete, const RemoteFile& file);

  const std::filesystem::path blob_, incomplete_;
  const RemoteFile file_;
  int lock_ = -1, descriptor_ = -1;
  bool was_whole_ = false;
  int64_t size_ = 0, hashed_ = 0;
  Digest digest_;
};

}  // namespace dsv4::hub
