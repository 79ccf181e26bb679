// PrefixDisk: kept states on disk, for prompts that the memory has nothing for any more, above all after a
// restart.
//
// The directory may be other servers' too (prefix_directory.h): what one of them has written, all find.
//
// The engine's thread offers states and asks for them; it never waits for a file. One thread writes the
// offered states, as long as its queue has room. It keeps the directory within its budget, and the least
// recently used files go first. Another looks for files of others, and reads. A wrong file is removed, logged
// and counted, so that nothing is tried twice. A disk that fails, or does not answer, costs reuse and nothing
// else.
//
// A state goes to the disk when it holds enough tokens more than the longest on its path there. Enough is
// kMinGain and a sixteenth of its length. The files of a conversation of N tokens then have some 16 N tokens
// together, not N squared.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/prefix_directory.h"
#include "kv/sequence_state.h"
#include "kv/snapshot.h"

namespace dsv4::engine {

struct PrefixDiskOptions {
  std::string directory;
  int64_t max_bytes = 0;  // Bytes of all files, other servers' too; > 0.
  // The producer of the model's states (model::Model::Origin), asked without waiting. Unavailable: not known
  // yet. Until it is known nothing is read, and what is offered waits. With any other error the disk takes no
  // more part. States of another origin are not used, so that a hit always has the numbers of a cold run.
  // They are removed when they are the least recently used.
  std::function<Result<uint64_t>()> origin;
  int64_t max_queued_bytes = int64_t{256} << 20;  // Memory of states that wait to be written; one always may.
};

struct PrefixDiskStats {
  bool is_ready = false;   // The weights are hashed, and the disk is not given up.
  int64_t num_states = 0;  // States that this model can use.
  int64_t num_bytes = 0;   // All files'.
  int64_t num_written = 0;
  int64_t num_read = 0;
  int64_t num_read_tokens = 0;
  int64_t num_read_of_others =
      0;  // States that were not written by this object: an earlier run's, or another server's.
  int64_t num_dropped = 0;    // Not written: the queue was full, or the disk failed.
  int64_t num_rejected = 0;   // Files that were not what they should be.
  int64_t num_evictions = 0;  // Gave way to others.
};

class PrefixDisk {
 public:
  // Turns bytes into a state of that origin: model::Model::DeserializeSnapshot. Called on a thread of ours.
  using Deserialize = std::function<Result<kv::Snapshot>(std::span<const std::byte>, uint64_t origin)>;

  // A state on its way from the disk, for IsDone and Take. Dropping it on the engine's thread gives it up.
  struct Load;
  struct Loaded {
    std::vector<int32_t> tokens;  // Tokens that the state holds: not only those of the prompt.
    kv::SequenceState state;
  };

  // `deserialize` is the model's, which outlives this. Errors: PrefixDirectory::Open; InvalidArgument for a
  // budget of nothing.
  static Result<std::unique_ptr<PrefixDisk>> Open(PrefixDiskOptions options, Deserialize deserialize);
  // Writes what is queued, if the origin is known. No thread may use an engine with this disk any more.
  ~PrefixDisk();
  PrefixDisk(const PrefixDisk&) = delete;
  PrefixDisk& operator=(const PrefixDisk&) = delete;

  // Secret of the directory: salts that are made with it are the same after a restart, and cannot be guessed
  // from outside.
  const std::string& secret() const { return directory_->secret(); }
  const PrefixDirectory::Findings& findings() const { return directory_->findings(); }

  // The engine's thread, for all that follows up to stats().

  // Writes `state`, which holds `tokens`, when that is worth a file.
  void Offer(uint64_t salt, std::span<const int32_t> tokens, const kv::SequenceState& state);

  // The state of a whole prompt, on its way to the disk, for IsDone.
  struct Publication;
  // The same for a state that other servers wait for. It is written whenever it has kMinGain tokens more than
  // others there, before all else that is queued.
  std::shared_ptr<Publication> Publish(uint64_t salt, std::span<const int32_t> tokens,
                                       const kv::SequenceState& state);
  // Tokens of it that all servers find, 0 where it could not be written; nullopt while that is not known.
  std::optional<int64_t> NumPublished(const Publication& publication) const;
  // Returns when another file is written, or after `at_most`.
  void WaitForWrite(std::chrono::milliseconds at_most);

  // Starts to look for the state with the longest usable proper prefix of `prompt`, as PrefixStore::Find, and
  // to read it. It must have more than `longer_than` tokens. States that other servers have written up to now
  // are found too. Null where nothing can be found: the prompt is too short, the origin is not known, or the
  // disk does not answer. Several askers of one state share its load.
  std::shared_ptr<Load> Find(uint64_t salt, std::span<const int32_t> prompt, int64_t longer_than);

  // Whether there is something to take, or never will be: the state is not there, or the disk has not
  // answered for long.
  bool IsDone(const Load& load) const;
  // Nullopt when there is no such state after all.
  std::optional<Loaded> Take(const Load& load) const;
  // Returns when another load is done, or after `at_most`.
  void WaitForLoad(std::chrono::milliseconds at_most);

  // Frees the memory of what has been written. To be called now and then.
  void Tidy();
  // Gives up what waits to be written and frees its memory; false when nothing waited.
  bool DropQueue();

  // Returns when everything that was offered is written or given up.
  void Flush();

  // Any thread. From now on nothing is read, written or found.
  void Disable(const Status& why);
  PrefixDiskStats stats() const;

  static constexpr int64_t kMinGain = 64;
  static constexpr int64_t kMinGainShare = 16;  // Share of the length: one part of so many.

 private:
  struct Entry {
    PrefixFileHead state;
    bool written = false;
    bool is_own = false;  // This object has written it,
    bool failed = false;  // or could not.
  };
  struct WriteJob {
    std::shared_ptr<Entry> entry;
    std::vector<int32_t> tokens;
    kv::Snapshot snapshot;
    int64_t num_bytes = 0;  // Memory's.
  };
  using Content = std::pair<std::vector<int32_t>, kv::Snapshot>;
  struct ReadJob {
    uint64_t salt = 0;
    std::vector<int32_t> prompt;
    int64_t longer_than = 0;
    std::shared_ptr<Load> load;
  };
  // Work that the reader leaves to the writer.
  struct Chore {
    std::string name;
    bool remove = false;  // Else the state has just been used.
  };
  struct Match {
    std::shared_ptr<Entry> entry;
    int64_t length = 0;  // Length of the common beginning, up to which the state can be taken back.
  };

  PrefixDisk(PrefixDiskOptions options, Deserialize deserialize, std::unique_ptr<PrefixDirectory> directory);

  void WriteLoop();
  void ReadLoop();
  Status Write(const WriteJob& job, uint64_t origin);
  // Enters what other servers have written since the last look, and forgets what is gone.
  void Look();
  // Reads the longest state for the job that is not damaged; null where there is none.
  std::shared_ptr<Content> ReadFor(const ReadJob& job, std::unique_lock<std::mutex>& lock);
  // Asks for the origin, and enters the states of it that are there; false while it is not known.
  bool LearnOrigin();
  // Returns when it is known; false where it never will be, or the disk stops first.
  bool AwaitOrigin();
  Result<Content> Read(const Entry& entry, uint64_t origin) const;
  Result<Content> ReadOrGiveUp(const Entry& entry);
  void GiveUp(const Entry& entry, const Status& why);
  void WarnOnce(const Status& status);

  // With the mutex held.
  void DropWrites();
  void EnterAll(uint64_t origin);
  void ForgetAll();
  void Enter(const std::shared_ptr<Entry>& entry);
  void EnterFile(const PrefixFileHead& head);
  bool IsStuck() const;
  // Null where the state is not worth a file.
  std::shared_ptr<Entry> Queue(uint64_t salt, std::span<const int32_t> tokens, const kv::SequenceState& state,
                               bool first);
  Match LongestFor(const ReadJob& job) const;
  void EndLoad(ReadJob& job, std::shared_ptr<Content> content);
  void Leave(const std::string& name);
  Match Longest(uint64_t salt, std::span<const int32_t> tokens, int64_t at_most, bool written_only) const;

  const PrefixDiskOptions options_;
  const Deserialize deserialize_;
  const std::unique_ptr<PrefixDirectory> directory_;

  mutable std::mutex mutex_;
  std::condition_variable write_wanted_;
  std::condition_variable read_wanted_;
  std::condition_variable load_done_;
  std::condition_variable write_done_;
  std::unordered_map<std::string, PrefixFileHead> files_;  // All that are there, by name.
  std::unordered_map<std::string, std::shared_ptr<Entry>>
      entries_;  // The ones of this origin, and what waits to be written.
  std::unordered_multimap<uint64_t, std::shared_ptr<Entry>> by_hash_;  // By each of PrefixHashes.
  std::unordered_map<uint64_t, std::map<int64_t, int64_t>>
      lengths_;  // By salt: of the hashed prefixes, with counts.
  // Lists, whose nodes move without memory: a job must reach the engine's thread, which owns its pages.
  std::list<WriteJob> writes_;
  std::list<WriteJob> spent_;  // Written; destroyed there.
  std::deque<ReadJob> reads_;
  std::list<Chore> chores_;
  int64_t queued_bytes_ = 0;
  int64_t num_asked_ = 0;   // Reads that were ever queued,
  int64_t num_looked_ = 0;  // and those that the last look came after.
  // By when the reader's call to the disk should have returned.
  std::optional<std::chrono::steady_clock::time_point> reader_wanted_back_;
  int64_t num_loads_done_ = 0;
  int64_t num_loads_seen_ = 0;
  bool writing_ = false;
  bool stopping_ = false;
  bool warned_ = false;             // Warning of a failing disk; until it works again.
  std::optional<uint64_t> origin_;  // Once it is known; only LearnOrigin changes it.
  bool disabled_ = false;
  PrefixDiskStats stats_;

  std::thread writer_;
  std::thread reader_;
};

}  // namespace dsv4::engine
