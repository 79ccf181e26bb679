// Verified expert splits of one or several stages, led by rank 0.
#include "apps/tiers/stage_trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/text.h"
#include "comm/collectives.h"

namespace dsv4::apps {
namespace {

// Order for the others.
enum class Order : uint8_t {
  kLoad,    // Each its split of those that come along.
  kFollow,  // The model's steps, until they are dismissed.
  kCount,   // Tell what their tiers have done.
  kDone,    // Keep what is loaded.
};

// `splits`: of kLoad, by rank.
Status Say(comm::Communicator& group, Order order, const model::StageSplits& splits = {}) {
  std::vector<std::byte> bytes(1 + splits.size() * sizeof(model::ExpertSplit));
  bytes[0] = static_cast<std::byte>(order);
  if (!splits.empty()) std::memcpy(bytes.data() + 1, splits.data(), bytes.size() - 1);
  return comm::BroadcastBytes(group, bytes, 0, comm::Wait::kForever);
}

struct Heard {
  Order order = Order::kDone;
  model::ExpertSplit split;  // Split of kLoad: this rank's.
};

Result<Heard> Listen(comm::Communicator& group) {
  std::vector<std::byte> bytes;
  DSV4_TRY(comm::BroadcastBytes(group, bytes, 0, comm::Wait::kForever));
  Heard heard;
  if (bytes.empty() || bytes[0] > static_cast<std::byte>(Order::kDone))
    return Error(DataLoss("rank 0 says nothing of a trial that this version knows"));
  heard.order = static_cast<Order>(bytes[0]);
  if (heard.order != Order::kLoad) return heard;
  const size_t num_bytes = sizeof(heard.split);
  if (bytes.size() != 1 + static_cast<size_t>(group.size()) * num_bytes) {
    return Error(DataLoss(fmt::format("rank 0 names splits in {}, want those of {}",
                                      Counted(bytes.size(), "byte"), Counted(group.size(), "rank"))));
  }
  std::memcpy(&heard.split, bytes.data() + 1 + static_cast<size_t>(group.rank()) * num_bytes, num_bytes);
  return heard;
}

Result<model::SeenTrial> TimeStepsOf(model::Model& model, int64_t prompt_tokens,
                                     std::function<Result<std::vector<TierCounts>>()> counts) {
  return TimeSteps(model, {.counts = std::move(counts),
                           .prompt_tokens = prompt_tokens,
                           .ahead = model.asynchronous() && model.can_queue()});
}

// The steps of a trial, on rank 0.
class LedSteps {
 public:
  LedSteps(comm::Communicator& group, const StageActions& actions) : group_(group), actions_(actions) {}

  Result<model::SeenTrial> Run(int64_t prompt_tokens) {
    model::Model& model = actions_.model();
    DSV4_TRY(Recall(model));
    Result<model::SeenTrial> trial =
        TimeStepsOf(model, prompt_tokens, [&]() -> Result<std::vector<TierCounts>> {
          DSV4_TRY(model.Dismiss());
          DSV4_TRY(Say(group_, Order::kCount));
          DSV4_ASSIGN_OR_RETURN(std::vector<TierCounts> counts,
                                comm::GatherValues(group_, actions_.counts()));
          DSV4_TRY(Recall(model));
          return counts;
        });
    const Status dismissed = model.Dismiss();
    if (trial.has_value()) DSV4_TRY(dismissed);
    return trial;
  }

 private:
  Status Recall(model::Model& model) {
    DSV4_RETURN_IF_ERROR(Say(group_, Order::kFollow));
    model.Recall();
    return {};
  }

  comm::Communicator& group_;
  const StageActions& actions_;
};

}  // namespace

Result<model::SplitPlan> GatherPlans(comm::Communicator& group, const model::StagePlan& mine) {
  // Rates take longer to measure on one rank than on another.
  DSV4_TRY(group.Barrier(comm::Wait::kForever));
  return comm::GatherValues(group, mine);
}

Result<model::VerifiedSplit> VerifyAlone(const model::SplitPlan& plan, const StageActions& actions,
                                         const SayLine& say) {
  const auto time_steps = [&] {
    model::Model& model = actions.model();
    return TimeStepsOf(model, FillingTokens(model.options().experts, plan.front().costs),
                       [&]() -> Result<std::vector<TierCounts>> { return std::vector{actions.counts()}; });
  };
  return model::VerifySplit(
      plan, {.load = [&](const model::StageSplits& splits) { return actions.load(splits.front()); },
             .time_steps = time_steps,
             .say = say});
}

Result<model::VerifiedSplit> LeadVerification(comm::Communicator& group, const model::SplitPlan& plan,
                                              const StageActions& actions, const SayLine& say) {
  LedSteps steps(group, actions);
  int64_t prompt_tokens = 0;  // Tokens that fill all stages' slots.
  const auto load = [&](const model::StageSplits& splits) -> Status {
    DSV4_RETURN_IF_ERROR(Say(group, Order::kLoad, splits));
    DSV4_RETURN_IF_ERROR(actions.load(splits.front()));
    prompt_tokens = 0;
    for (size_t i = 0; i < splits.size(); ++i)
      prompt_tokens = std::max(prompt_tokens, FillingTokens(splits[i], plan[i].costs));
    return actions.model().Dismiss();  // Until there are steps.
  };
  DSV4_ASSIGN_OR_RETURN(
      model::VerifiedSplit verified,
      model::VerifySplit(plan,
                         {.load = load, .time_steps = [&] { return steps.Run(prompt_tokens); }, .say = say}));
  DSV4_TRY(Say(group, Order::kDone));
  actions.model().Recall();
  return verified;
}

Status FollowVerification(comm::Communicator& group, const StageActions& actions) {
  for (;;) {
    DSV4_ASSIGN_OR_RETURN_STATUS(const Heard heard, Listen(group));
    switch (heard.order) {
      case Order::kLoad: {
        const Status loaded = actions.load(heard.split);
        // Rank 0 has the same error, unless the group has ended, and says what is done about it.
        DSV4_RETURN_IF_ERROR(loaded.ok() ? actions.model().Follow() : group.Check());
        break;
      }
      case Order::kFollow:
        DSV4_RETURN_IF_ERROR(actions.model().Follow());
        break;
      case Order::kCount: {
        DSV4_ASSIGN_OR_RETURN_STATUS(const auto all, comm::GatherValues(group, actions.counts()));
        static_cast<void>(all);
        break;
      }
      case Order::kDone:
        return {};
    }
  }
}

}  // namespace dsv4::apps
