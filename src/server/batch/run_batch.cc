// The loop that keeps requests of a batch in flight.
#include "server/batch/run_batch.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "server/observe/random_id.h"

namespace dsv4::server {
namespace {

// How long answers gather before they are looked at: a token a step and request wakes too often.
constexpr std::chrono::milliseconds kTick(10);
// How long the loop waits for an answer before it asks whether to stop.
constexpr std::chrono::milliseconds kPatience(100);

// Refusals of a request with no other in flight, after which the refusal is its answer.
constexpr int kMostRefusals = 100;

constexpr int kQueueIsFull = 429;
constexpr int kUnavailable = 503;

// The numbers of requests whose replies have more to say.
class Wakes {
 public:
  void Add(int64_t number) {
    {
      const std::lock_guard lock(mutex_);
      numbers_.insert(number);
    }
    changed_.notify_one();
  }
  std::set<int64_t> Await() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [&] { return !numbers_.empty(); });
    return std::exchange(numbers_, {});
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<int64_t> numbers_;
};

class Loop {
 public:
  explicit Loop(const BatchWork& work) : work_(work) {}

  Status Run() {
    for (;;) {
      if (work_.stop()) return {StatusCode::kCancelled, "the batch was stopped"};
      DSV4_RETURN_IF_ERROR(Fill());
      if (asked_.empty() && again_.empty()) return {};
      for (const int64_t number : wakes_->Await()) {
        const auto found = asked_.find(number);
        if (found != asked_.end()) DSV4_RETURN_IF_ERROR(Advance(found));
      }
      std::this_thread::sleep_for(kTick);
    }
  }

 private:
  struct Turn {
    BatchLine line;
    int num_refusals = 0;  // While no other was in flight.
  };
  struct Asked {
    Turn turn;
    std::string request_id;
    std::unique_ptr<Reply> reply;
    ReplyOutput out;
  };
  using Place = std::map<int64_t, Asked>::iterator;

  Status Fill() {
    // A refused request waits for an answer of another, or a tick.
    bool refused = false;
    while (std::ssize(asked_) < work_.in_flight && !refused) {
      std::optional<Turn> turn;
      if (!again_.empty()) {
        turn = std::move(again_.front());
        again_.pop_front();
      } else if (!at_end_) {
        DSV4_ASSIGN_OR_RETURN_STATUS(std::optional<BatchLine> line, work_.next());
        at_end_ = !line;
        if (line) turn = Turn{.line = std::move(*line)};
      }
      if (!turn) return {};
      const size_t had = again_.size();
      DSV4_RETURN_IF_ERROR(Ask(std::move(*turn)));
      refused = again_.size() > had;
    }
    return {};
  }

  Status Ask(Turn turn) {
    const int64_t number = ++last_number_;
    HttpRequest request;
    request.method = "POST";
    request.path = turn.line.url;
    request.headers = {{"content-type", "application/json"}, {"host", "localhost"}};
    request.body = turn.line.body;
    request.id = RandomId("req_");
    Asked asked = {.turn = std::move(turn), .request_id = request.id, .reply = nullptr, .out = {}};
    asked.reply = work_.ask(std::move(request));
    asked.reply->OnProgress([wakes = wakes_, number] { wakes->Add(number); });
    return Advance(asked_.emplace(number, std::move(asked)).first);
  }

  Status Advance(Place place) {
    Asked& asked = place->second;
    asked.reply->Advance(asked.out);
    if (!asked.out.done) return {};
    BatchAnswer answer = {.custom_id = asked.turn.line.custom_id,
                          .digest = asked.turn.line.Digest(),
                          .request_id = std::move(asked.request_id),
                          .status = asked.out.head ? asked.out.head->status : 500,
                          .body = std::move(asked.out.body)};
    Turn turn = std::move(asked.turn);
    asked_.erase(place);
    if (answer.status == kQueueIsFull || answer.status == kUnavailable) {
      if (asked_.empty()) ++turn.num_refusals;
      if (turn.num_refusals < kMostRefusals) {
        again_.push_back(std::move(turn));
        return {};
      }
    }
    return work_.put(answer);
  }

  const BatchWork& work_;
  const std::shared_ptr<Wakes> wakes_ = std::make_shared<Wakes>();
  std::map<int64_t, Asked> asked_;
  std::deque<Turn> again_;
  int64_t last_number_ = 0;
  bool at_end_ = false;
};

}  // namespace

Status RunBatch(const BatchWork& work) { return Loop(work).Run(); }

}  // namespace dsv4::server
