// PrefixDirectory: a directory of prefix files that any number of servers use at once, on one machine or on
// storage that several have in common.
//
// DIR/states holds the files; nothing else says which there are. Each file has one writer, and all servers
// read it. Names are the contents', so two servers that write one state write the same bytes. What keeps the
// directory in order are locks (flock), which a process loses when it dies, whatever clocks say:
//
//   DIR/lock           held for a moment by a server that makes room and starts a file, or gives one its name. An unfinished file counts with the
//                      size that it will have. So all together stay within the bytes that each server allows.
//   an unfinished file held by its writer. One that can be locked is a dead server's, and is removed by the next that makes room.
//
// A lost lock costs room and nothing else: a file is whole or absent, and is checked by hash when it is read.
// The least recently used goes first. When a file was used stands in its time of modification, which grows
// with every use also when a clock goes back.
//
// DIR/secret has 32 random bytes. The directory is its owner's alone (0700): the files hold what people have
// said to the model.
//
// Two threads: one calls Look, another Publish and Touch; Remove and num_bytes are for both.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "engine/prefix_file.h"

namespace dsv4::engine {

class PrefixDirectory {
 public:
  // A line of the log about what was found.
  struct Findings {
    int64_t num_unfinished = 0;  // Left behind by killed servers, removed.
    int64_t num_foreign = 0;     // Names that are not ours, left alone.
  };
  struct Changes {
    std::vector<PrefixFileHead> added;
    std::vector<std::string> removed;  // Names.
    int64_t num_damaged = 0;           // Files that were removed since they are none of ours.
  };
  struct Published {
    bool written = false;   // False: the state is there, or another server is writing it.
    bool is_there = false;  // The former.
    int64_t num_bytes = 0;
    std::vector<std::string> evicted;
  };

  // Makes the directory where it is missing, removes what dead servers have left, and the least recently used
  // files past `max_bytes`. Unavailable with the system's reason, also where the file system has no locks;
  // DeadlineExceeded where another program holds the lock.
  static Result<std::unique_ptr<PrefixDirectory>> Open(const std::string& directory, int64_t max_bytes);

  const Findings& findings() const { return findings_; }
  const std::string& secret() const { return secret_; }
  // Files that fell out when the directory was opened.
  int64_t num_evicted_at_open() const { return num_evicted_at_open_; }
  std::string PathOf(const std::string& name) const { return files_ + "/" + name; }

  // Changes since the last look, own files left out. The first one finds all.
  Result<Changes> Look();
  // Makes room for the state and writes it. ResourceExhausted for one of more than `max_bytes`.
  Result<Published> Publish(const PrefixKey& key, std::span<const std::byte> snapshot, int64_t max_bytes);
  // The file has just been used.
  void Touch(const std::string& name);
  void Remove(const std::string& name);
  // Size of all files, as last seen.
  int64_t num_bytes() const { return num_bytes_; }

 private:
  struct Room;
  explicit PrefixDirectory(std::string directory);
  Status Prepare(int64_t max_bytes);
  Status ReadSecret();
  // With the lock held: counts all files, and removes the least recently used until `num_bytes` more fit.
  Result<Room> MakeRoom(const std::string& name, int64_t num_bytes, int64_t max_bytes);
  int64_t NextUse();
  void Know(const std::string& name, int64_t num_bytes);
  void Forget(const std::string& name);

  const std::string directory_;
  const std::string files_;
  std::string secret_;
  Findings findings_;
  int64_t num_evicted_at_open_ = 0;
  std::atomic<int64_t> num_bytes_ = 0;
  std::atomic<int64_t> last_use_ = 0;  // Nanoseconds: the latest that any file was seen to have.
  std::mutex mutex_;
  std::unordered_map<std::string, int64_t> known_;  // Bytes by name, of the files that were looked at.
};

}  // namespace dsv4::engine
