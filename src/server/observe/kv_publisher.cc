// Events of kept blocks on their way to sockets, which one thread has.
#include "server/observe/kv_publisher.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <variant>

#include "base/log.h"
#include "base/text.h"
#include "server/observe/message_pack.h"
#include "server/observe/zmq_library.h"

namespace dsv4::server {
namespace {

// How often the replay socket is looked at.
constexpr std::chrono::milliseconds kLook(10);
constexpr uint64_t kEnd = ~uint64_t{0};  // -1

struct Removed {
  std::vector<uint64_t> hashes;
};
struct Cleared {};
struct Change {
  double time = 0;  // Seconds since 1970.
  std::variant<engine::StoredBlocks, Removed, Cleared> what;
};

// The members of one event, in order: an array, or a map with their names.
class Members {
 public:
  Members(MessagePack& out, bool named, size_t size) : out_(out), named_(named) {
    named ? out.Map(size) : out.Array(size);
  }
  MessagePack& operator[](std::string_view name) {
    if (named_) out_.String(name);
    return out_;
  }

 private:
  MessagePack& out_;
  bool named_;
};

void PutHashes(std::span<const uint64_t> hashes, MessagePack& out) {
  out.Array(hashes.size());
  for (const uint64_t hash : hashes) out.Unsigned(hash);
}

std::string Batch(const Change& change, const KvPublisherOptions& options) {
  MessagePack out;
  const bool named = options.named_members;
  out.Array(3);
  out.Double(change.time);
  out.Array(1);
  if (const auto* stored = std::get_if<engine::StoredBlocks>(&change.what)) {
    Members event(out, named, 8);
    event["type"].String("BlockStored");
    PutHashes(stored->hashes, event["block_hashes"]);
    MessagePack& parent = event["parent_block_hash"];
    stored->has_parent ? parent.Unsigned(stored->parent) : parent.Nil();
    event["token_ids"].Array(stored->tokens.size());
    for (const int32_t token : stored->tokens) out.Unsigned(static_cast<uint64_t>(token));
    event["block_size"].Unsigned(static_cast<uint64_t>(options.block_tokens));
    event["lora_id"].Nil();
    event["medium"].String(options.medium);
    event["lora_name"].Nil();
  } else if (const auto* removed = std::get_if<Removed>(&change.what)) {
    Members event(out, named, 3);
    event["type"].String("BlockRemoved");
    PutHashes(removed->hashes, event["block_hashes"]);
    event["medium"].String(options.medium);
  } else {
    Members event(out, named, 1);
    event["type"].String("AllBlocksCleared");
  }
  out.Unsigned(0);  // The rank.
  return out.Take();
}

std::array<char, 8> BigEndian(uint64_t number) {
  std::array<char, 8> bytes = {};
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(number >> (8 * (7 - i)));
  return bytes;
}

}  // namespace

struct KvPublisher::Impl {
  KvPublisherOptions options;
  ZmqLibrary zmq;
  void* context = nullptr;
  void* publish = nullptr;
  void* replay = nullptr;
  std::string bound;  // The endpoints, with their ports.
  std::string bound_replay;

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::pair<uint64_t, Change>> queue;
  std::deque<std::pair<uint64_t, Change>> taken;  // By the thread.
  uint64_t next = 0;
  bool stopping = false;
  std::thread thread;

  // The thread's only.
  std::deque<std::pair<uint64_t, std::string>> sent;

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    if (thread.joinable()) thread.join();
    for (void* socket : {publish, replay})
      if (socket != nullptr) zmq.close(socket);
    if (context != nullptr) zmq.end_context(context);
  }

  Status Bind(void*& socket, int kind, const std::string& endpoint, std::string_view option) {
    socket = zmq.new_socket(context, kind);
    // A second, so that readers get the last events of a server that ends.
    const int linger = 1000;
    if (socket != nullptr) {
      zmq.set_option(socket, ZmqLibrary::kLinger, &linger, sizeof(linger));
      zmq.set_option(socket, ZmqLibrary::kSendHighWater, &options.most_unsent, sizeof(options.most_unsent));
    }
    if (socket != nullptr && zmq.bind(socket, endpoint.c_str()) == 0) return {};
    return InvalidArgument(
        fmt::format("{} {}: cannot listen there: {}", option, endpoint, zmq.error_text(zmq.error())));
  }

  std::string Bound(void* socket) const {
    std::array<char, 256> text = {};
    size_t size = text.size();
    if (socket == nullptr || zmq.get_option(socket, ZmqLibrary::kLastEndpoint, text.data(), &size) != 0)
      return {};
    return text.data();
  }

  // A change without memory to tell of it leaves a gap in the numbers, which readers see.
  void Push(auto what) noexcept {
    {
      const std::lock_guard lock(mutex);
      const uint64_t number = next++;
      try {
        const double now =
            std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
        queue.emplace_back(number, Change{.time = now, .what = std::move(what)});
      } catch (const std::bad_alloc&) {
      }
    }
    changed.notify_one();
  }

  void Run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait_for(lock, kLook, [&] { return stopping || !queue.empty(); });
      queue.swap(taken);  // An empty deque takes memory to make.
      const bool last = stopping;
      lock.unlock();
      for (const auto& [number, change] : taken) Send(number, change);
      taken.clear();
      try {
        if (replay != nullptr) AnswerReplays();
      } catch (const std::bad_alloc&) {  // The reader asks again.
      }
      lock.lock();
      if (last && queue.empty()) return;
    }
  }

  void Send(uint64_t number, const Change& change) {
    try {
      std::string batch = Batch(change, options);
      const std::array<char, 8> bytes = BigEndian(number);
      zmq.send(publish, options.topic.data(), options.topic.size(), ZmqLibrary::kSendMore);
      zmq.send(publish, bytes.data(), bytes.size(), ZmqLibrary::kSendMore);
      zmq.send(publish, batch.data(), batch.size(), 0);
      sent.emplace_back(number, std::move(batch));
      if (sent.size() > options.num_replayed) sent.pop_front();
    } catch (const std::bad_alloc&) {
    }
  }

  // A whole message; false: none has come. Parts beyond 256 bytes are cut, none of ours is as long.
  bool Receive(std::vector<std::string>& parts) const {
    parts.clear();
    for (int more = 1; more != 0;) {
      std::array<char, 256> bytes = {};
      const int size =
          zmq.receive(replay, bytes.data(), bytes.size(), parts.empty() ? ZmqLibrary::kDontWait : 0);
      if (size < 0) return false;
      parts.emplace_back(bytes.data(), std::min<size_t>(static_cast<size_t>(size), bytes.size()));
      size_t more_size = sizeof(more);
      if (zmq.get_option(replay, ZmqLibrary::kMore, &more, &more_size) != 0) return false;
    }
    return true;
  }

  void AnswerReplays() {
    std::vector<std::string> parts;
    while (Receive(parts)) {
      // A REQ socket puts an empty part in front; of a DEALER it may be missing.
      const std::string& asked = parts.back();
      if (parts.size() < 2 || asked.size() != 8) {
        LogWarning(
            fmt::format("kv events: a request for a replay has {}, the last of {}; wanted a number of 8",
                        Counted(parts.size(), "part"), Counted(asked.size(), "byte")));
        continue;
      }
      uint64_t from = 0;
      for (const char byte : asked) from = from << 8 | static_cast<unsigned char>(byte);
      for (const auto& [number, batch] : sent)
        if (number >= from) Reply(parts.front(), options.topic, number, batch);
      Reply(parts.front(), {}, kEnd, {});
    }
  }

  void Reply(const std::string& reader, std::string_view topic, uint64_t number,
             std::string_view batch) const {
    const std::array<char, 8> bytes = BigEndian(number);
    constexpr int kFlags = ZmqLibrary::kSendMore | ZmqLibrary::kDontWait;
    if (zmq.send(replay, reader.data(), reader.size(), kFlags) < 0) return;
    zmq.send(replay, "", 0, kFlags);
    if (options.named_members) zmq.send(replay, topic.data(), topic.size(), kFlags);
    zmq.send(replay, bytes.data(), bytes.size(), kFlags);
    zmq.send(replay, batch.data(), batch.size(), ZmqLibrary::kDontWait);
  }
};

KvPublisher::KvPublisher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
KvPublisher::~KvPublisher() = default;

Result<std::unique_ptr<KvPublisher>> KvPublisher::Open(KvPublisherOptions options) {
  auto impl = std::make_unique<Impl>();
  DSV4_ASSIGN_OR_RETURN(impl->zmq, ZmqLibrary::Open());
  impl->options = std::move(options);
  impl->context = impl->zmq.new_context();
  if (impl->context == nullptr)
    return Error(StatusCode::kResourceExhausted, "kv events: no memory for ZeroMQ");
  DSV4_TRY(impl->Bind(impl->publish, ZmqLibrary::kPub, impl->options.endpoint, "--kv-events"));
  if (!impl->options.replay_endpoint.empty())
    DSV4_TRY(
        impl->Bind(impl->replay, ZmqLibrary::kRouter, impl->options.replay_endpoint, "--kv-events-replay"));
  impl->bound = impl->Bound(impl->publish);
  impl->bound_replay = impl->Bound(impl->replay);
  impl->Push(Cleared());
  impl->thread = std::thread([raw = impl.get()] { raw->Run(); });
  return std::unique_ptr<KvPublisher>(new KvPublisher(std::move(impl)));
}

const std::string& KvPublisher::endpoint() const { return impl_->bound; }
const std::string& KvPublisher::replay_endpoint() const { return impl_->bound_replay; }
const std::string& KvPublisher::topic() const { return impl_->options.topic; }

uint64_t KvPublisher::next_number() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->next;
}

void KvPublisher::OnStored(engine::StoredBlocks blocks) { impl_->Push(std::move(blocks)); }
void KvPublisher::OnRemoved(std::vector<uint64_t> hashes) { impl_->Push(Removed{std::move(hashes)}); }
void KvPublisher::OnCleared() { impl_->Push(Cleared()); }

}  // namespace dsv4::server
