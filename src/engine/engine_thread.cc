// Thread that runs an engine: an inbox of requests, mailboxes of events, cancellations and failures.
#include "engine/engine_thread.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/text.h"

namespace dsv4::engine {
namespace {

// The events of one request on their way from the engine's thread to their reader.
class Mailbox {
 public:
  // Takes all of `events`, or throws std::bad_alloc and takes none.
  void Put(std::vector<Event>& events) {
    std::function<void()> wake;
    {
      const std::lock_guard lock(mutex_);
      wake = wake_;
      events_.reserve(std::max(2 * events_.size(), events_.size() + events.size()));
      if (events_.empty()) unread_since_ = std::chrono::steady_clock::now();
      events_.insert(events_.end(), std::make_move_iterator(events.begin()),
                     std::make_move_iterator(events.end()));
      events.clear();
    }
    if (wake) wake();
  }
  std::vector<Event> Take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(events_, {});
  }
  // The time of the first event that was not taken; none: there is no such event.
  std::optional<std::chrono::steady_clock::time_point> unread_since() const {
    const std::lock_guard lock(mutex_);
    if (events_.empty()) return std::nullopt;
    return unread_since_;
  }
  void SetWake(std::function<void()> wake) {
    bool now = false;
    {
      const std::lock_guard lock(mutex_);
      wake_ = wake;
      now = !events_.empty();
    }
    if (now && wake) wake();
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Event> events_;
  std::chrono::steady_clock::time_point unread_since_ = {};
  std::function<void()> wake_;
};

struct Submission {
  Request request;
  std::shared_ptr<Mailbox> mailbox;
  std::shared_ptr<std::atomic<bool>> cancelled;
};

}  // namespace

struct EngineThread::Shared {
  // Fixed after construction.
  std::unique_ptr<Engine> engine;  // Only the engine's thread calls more than Check and context_length.
  EngineThreadOptions options;
  std::function<void(const StepReport&)> on_step;
  std::thread thread;

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::vector<Submission> inbox;
  EngineStats stats;
  int64_t num_unfinished = 0;  // Submitted and without a kFinished event.
  int64_t num_unadmitted = 0;
  std::unordered_map<uint64_t, int64_t> num_unadmitted_of;  // By owner; those that have any.
  bool has_cancellations = false;
  bool drops_states = false;
  struct BlocksAsked {
    std::function<void()> beside;
    std::promise<std::vector<uint64_t>> blocks;
  };
  std::vector<BlocksAsked> blocks_asked;
  bool stopping = false;

  // The engine's thread only.
  struct Reader {
    std::shared_ptr<Mailbox> mailbox;
    std::shared_ptr<std::atomic<bool>> cancelled;
    uint64_t owner = 0;
    bool admitted = false;
    std::vector<Event> events;
  };
  std::unordered_map<RequestId, Reader> readers;

  void Run();
  template <typename Act>
  void Insist(const Act& act);
  // One of the owner's requests waits no longer. With the lock.
  void CountAdmitted(uint64_t owner);
  void Receive(std::vector<Submission> submissions);
  void Deliver(std::vector<Event> events, double seconds);
};

namespace {

class RemoteGeneration final : public Generation {
 public:
  RemoteGeneration(std::shared_ptr<Mailbox> mailbox, std::shared_ptr<std::atomic<bool>> cancelled,
                   std::function<void()> tell)
      : mailbox_(std::move(mailbox)), cancelled_(std::move(cancelled)), tell_(std::move(tell)) {}
  ~RemoteGeneration() override {
    mailbox_->SetWake({});
    Cancel();
  }
  std::vector<Event> Take() override { return mailbox_->Take(); }
  void OnEvents(std::function<void()> wake) override { mailbox_->SetWake(std::move(wake)); }
  void Cancel() override {
    if (!cancelled_->exchange(true)) tell_();
  }

 private:
  std::shared_ptr<Mailbox> mailbox_;
  std::shared_ptr<std::atomic<bool>> cancelled_;
  std::function<void()> tell_;
};

}  // namespace

// Events that a reader must hear of are delivered again until there is memory for it: `act` does all or
// nothing. First wait for what others give back, then give back all that the engine has.
template <typename Act>
void EngineThread::Shared::Insist(const Act& act) {
  constexpr int kPatience = 20;
  for (int i = 0;; ++i) {
    try {
      act();
      return;
    } catch (const std::bad_alloc&) {
      if (i == kPatience) engine->Abandon();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

void EngineThread::Shared::CountAdmitted(uint64_t owner) {
  --num_unadmitted;
  const auto found = num_unadmitted_of.find(owner);
  if (--found->second == 0) num_unadmitted_of.erase(found);
}

void EngineThread::Shared::Receive(std::vector<Submission> submissions) {
  for (Submission& submission : submissions) {
    Status status;
    const uint64_t owner = submission.request.owner;
    RequestId number = 0;
    Insist([&] {
      try {
        const Result<RequestId> id = engine->Submit(std::move(submission.request));
        if (id)
          number = *id;
        else
          status = id.error();  // Check has passed it already, so this cannot happen.
      } catch (const std::bad_alloc&) {
        status = Status(StatusCode::kUnavailable, "memory ran out; try again later");
      }
    });
    if (!status.ok()) {
      {
        const std::lock_guard lock(mutex);
        --num_unfinished;
        CountAdmitted(owner);
      }
      std::vector<Event> events;
      Insist([&] {
        events.push_back(
            {.kind = Event::Kind::kFinished, .finish_reason = FinishReason::kError, .status = status});
      });
      Insist([&] { submission.mailbox->Put(events); });
      continue;
    }
    Insist([&] { readers.try_emplace(number); });
    readers.at(number) = {.mailbox = std::move(submission.mailbox),
                          .cancelled = std::move(submission.cancelled),
                          .owner = owner};
  }
}

void EngineThread::Shared::Deliver(std::vector<Event> events, double seconds) {
  std::vector<RequestId> touched;
  int64_t num_finished = 0;
  for (Event& event : events) {
    Reader& reader = readers.at(event.request);
    if (reader.events.empty()) Insist([&] { touched.push_back(event.request); });
    const bool finished = event.kind == Event::Kind::kFinished;
    if (finished) ++num_finished;
    if (!reader.admitted && (finished || event.kind == Event::Kind::kAdmitted)) {
      reader.admitted = true;
      const std::lock_guard lock(mutex);
      CountAdmitted(reader.owner);
    }
    Insist([&] { reader.events.push_back(std::move(event)); });
  }
  const EngineStats now = engine->stats();
  {
    const std::lock_guard lock(mutex);
    stats = now;
    num_unfinished -= num_finished;
  }
  try {
    if (on_step) on_step({.seconds = seconds, .num_sequences = now.num_running, .stats = now});
  } catch (const std::bad_alloc&) {  // A step that is not counted.
  }
  for (const RequestId id : touched) {
    Reader& reader = readers.at(id);
    const bool finished = reader.events.back().kind == Event::Kind::kFinished;
    Insist([&] { reader.mailbox->Put(reader.events); });
    if (finished) readers.erase(id);
  }
}

void EngineThread::Shared::Run() {
  using Clock = std::chrono::steady_clock;
  for (;;) {
    std::vector<Submission> submissions;
    bool cancel_all = false;
    bool look_for_cancelled = false;
    bool drop_states = false;
    std::vector<BlocksAsked> blocks;
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] {
        return stopping || drops_states || !blocks_asked.empty() || !inbox.empty() || !engine->idle();
      });
      blocks = std::exchange(blocks_asked, {});
      submissions = std::exchange(inbox, {});
      cancel_all = stopping;
      look_for_cancelled = std::exchange(has_cancellations, false);
      drop_states = std::exchange(drops_states, false);
    }
    if (drop_states) {
      engine->DropKeptStates();
      const EngineStats now = engine->stats();
      const std::lock_guard lock(mutex);
      stats = now;
    }
    for (BlocksAsked& asked : blocks) {
      std::vector<uint64_t> kept;
      Insist([&] { kept = engine->KeptBlocks(); });
      asked.beside();
      asked.blocks.set_value(std::move(kept));
    }
    Receive(std::move(submissions));
    if (cancel_all || look_for_cancelled) {
      for (const auto& [id, reader] : readers) {
        if (cancel_all || reader.cancelled->load()) engine->Cancel(id);
      }
    }
    if (engine->idle()) {
      if (cancel_all) return;
      continue;
    }
    if (engine->has_waiting())
      engine->SetUnread([&](RequestId id) { return readers.at(id).mailbox->unread_since(); });
    const Clock::time_point start = Clock::now();
    std::vector<Event> events;
    Insist([&] { events = engine->Step(); });
    Deliver(std::move(events), std::chrono::duration<double>(Clock::now() - start).count());
  }
}

EngineThread::EngineThread(std::unique_ptr<Engine> engine, EngineThreadOptions options,
                           std::function<void(const StepReport&)> on_step)
    : shared_(std::make_shared<Shared>()) {
  shared_->engine = std::move(engine);
  shared_->options = options;
  shared_->on_step = std::move(on_step);
  shared_->thread = std::thread([shared = shared_.get()] { shared->Run(); });
}

EngineThread::~EngineThread() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stopping = true;
  }
  shared_->changed.notify_all();
  shared_->thread.join();
  shared_->engine.reset();  // Generations may outlive us; the model may not.
}

Result<std::vector<std::unique_ptr<Generation>>> EngineThread::SubmitAll(std::vector<Request> requests) {
  for (const Request& request : requests) DSV4_TRY(shared_->engine->Check(request));
  std::vector<std::unique_ptr<Generation>> generations;
  std::vector<Submission> submissions;
  for (Request& request : requests) {
    auto mailbox = std::make_shared<Mailbox>();
    auto cancelled = std::make_shared<std::atomic<bool>>(false);
    submissions.push_back({std::move(request), mailbox, cancelled});
    generations.push_back(
        std::make_unique<RemoteGeneration>(std::move(mailbox), std::move(cancelled), [shared = shared_] {
          const std::lock_guard cancel_lock(shared->mutex);
          shared->has_cancellations = true;
        }));
  }
  {
    const std::lock_guard lock(shared_->mutex);
    const auto count = static_cast<int64_t>(requests.size());
    if (count > shared_->options.max_waiting) {  // There will never be room.
      return Error(InvalidArgument(fmt::format("n: {} in one request, at most {} may wait",
                                               Counted(count, "answer"), shared_->options.max_waiting)));
    }
    if (submissions.empty()) return generations;
    const uint64_t owner = submissions.front().request.owner;
    const auto found = shared_->num_unadmitted_of.find(owner);
    const int64_t mine = found == shared_->num_unadmitted_of.end() ? 0 : found->second;
    const int64_t most = shared_->options.max_waiting;
    // An owner may have twice what it leaves of room for half as many again: alone `most`. One that has none
    // finds room longer.
    const int64_t others = shared_->num_unadmitted - mine;
    const int64_t may = std::clamp<int64_t>(2 * ((3 * most + 1) / 2 - others) / 3, 0, most);
    if (mine + count > may && (mine > 0 || shared_->num_unadmitted + count > 4 * most)) {
      return Error(ResourceExhausted(
          fmt::format("queue: {} waiting already, {} of yours, of which {} may; try again later",
                      Counted(shared_->num_unadmitted, "request is", "requests are"), mine, may)));
    }
    shared_->inbox.reserve(shared_->inbox.size() + submissions.size());
    shared_->num_unadmitted_of[owner] += count;
    shared_->num_unadmitted += count;
    shared_->num_unfinished += count;
    for (Submission& submission : submissions) shared_->inbox.push_back(std::move(submission));
  }
  shared_->changed.notify_all();
  return generations;
}

Result<std::unique_ptr<Generation>> EngineThread::Submit(Request request) {
  std::vector<Request> requests;
  requests.push_back(std::move(request));
  DSV4_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<Generation>> generations, SubmitAll(std::move(requests)));
  return std::move(generations.front());
}

void EngineThread::DropKeptStates() {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->drops_states = true;
  }
  shared_->changed.notify_all();
}

std::vector<uint64_t> EngineThread::KeptBlocks(std::function<void()> beside) {
  std::future<std::vector<uint64_t>> kept;
  {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->stopping) return {};
    shared_->blocks_asked.push_back({.beside = std::move(beside), .blocks = {}});
    kept = shared_->blocks_asked.back().blocks.get_future();
  }
  shared_->changed.notify_all();
  return kept.get();
}

int64_t EngineThread::context_length() const { return shared_->engine->context_length(); }

EngineStats EngineThread::stats() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->stats;
}

bool EngineThread::idle() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->num_unfinished == 0;
}

}  // namespace dsv4::engine
