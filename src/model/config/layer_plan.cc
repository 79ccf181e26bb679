// Checks of layer plans, and the plans of one stage.
#include "model/config/layer_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/check.h"

namespace dsv4::model {
namespace {

struct Owner {
  std::string_view name;
  int LayerPlan::*member;
};
constexpr std::array<Owner, 4> kOwners = {
    Owner{"entries", &LayerPlan::entries},
    Owner{"keys", &LayerPlan::keys},
    Owner{"selection", &LayerPlan::selection},
    Owner{"candidates", &LayerPlan::candidates},
};

Status Fault(std::string_view what, const LayerPlan& plan, std::string_view got, std::string_view wanted) {
  return InvalidArgument(fmt::format("{}: layer {}: {}, wanted {}", what, plan.number, got, wanted));
}

// One owner of a layer's rows.
Status CheckOwner(std::span<const LayerPlan> plans, const LayerPlan& plan, const Owner& kind,
                  std::string_view what) {
  const int owner = plan.*kind.member;
  if (owner < 0) return {};
  if (owner > plan.window)
    return Fault(what, plan, fmt::format("reads the {} of layer {}", kind.name, owner),
                 "those of itself or of an earlier layer");
  const LayerPlan& maker = plans[static_cast<size_t>(owner)];
  if (maker.*kind.member != owner)
    return Fault(what, plan, fmt::format("reads the {} of layer {}, which makes none", kind.name, owner),
                 "a layer that makes them");
  if (maker.ratio != plan.ratio)
    return Fault(what, plan,
                 fmt::format("reads the {} of layer {}, whose ratio is {}", kind.name, owner, maker.ratio),
                 fmt::format("its own ratio {}", plan.ratio));
  return {};
}

}  // namespace

std::string_view AttentionName(const LayerPlan& plan) {
  if (!plan.sees_entries()) return "swa";
  return plan.reads_selection() ? "csa" : "hca";
}

std::string Facts(const LayerPlan& plan) {
  const auto& [number, window, entries, keys, selection, candidates, ratio, overlap, pooling, key_source,
               engram, router, rope, block_rows, num_experts, experts_per_token] = plan;
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", number, window, entries, keys,
                     selection, candidates, ratio, overlap, static_cast<int>(pooling),
                     static_cast<int>(key_source), engram, static_cast<int>(router), static_cast<int>(rope),
                     block_rows, num_experts, experts_per_token);
}

LayerPlan BlockPlan(int number, int state_layer) { return {.number = number, .window = state_layer}; }

Status CheckPlans(std::span<const LayerPlan> plans, std::string_view what) {
  int last_chooser = -1;
  for (size_t i = 0; i < plans.size(); ++i) {
    const LayerPlan& plan = plans[i];
    DSV4_CHECK(plan.number == static_cast<int>(i) && plan.window == plan.number)
        << plan.number << " at " << i;
    if (plan.sees_entries() != (plan.ratio > 0) || (!plan.sees_entries() && plan.reads_selection()))
      return Fault(what, plan, fmt::format("ratio {}, entries of layer {}", plan.ratio, plan.entries),
                   "entries exactly where the ratio is not 0");
    for (const Owner& kind : kOwners) DSV4_RETURN_IF_ERROR(CheckOwner(plans, plan, kind, what));
    if (plan.selects() && plan.keys < 0)
      return Fault(what, plan, "chooses entries without keys", "keys of its own or of an earlier layer");
    // One choice at a time travels through the trunk.
    if (plan.selects()) last_chooser = plan.number;
    if (plan.reads_selection() && plan.selection != last_chooser)
      return Fault(what, plan, fmt::format("uses the choice of layer {}", plan.selection),
                   fmt::format("that of layer {}, the last one to choose", last_chooser));
    // A choice is among the entries that are read.
    const int chooser = plan.selection;
    if (chooser >= 0 && plans[static_cast<size_t>(chooser)].entries != plan.entries)
      return Fault(what, plan, fmt::format("uses the choice of layer {}, which reads other entries", chooser),
                   "a choice among its own entries");
    if (plan.selects() && plan.keys != plan.entries)
      return Fault(what, plan,
                   fmt::format("scores keys of layer {} for entries of layer {}", plan.keys, plan.entries),
                   "keys of the layer whose entries it reads");
    if (plan.candidates >= 0 && !plan.selects())
      return Fault(what, plan,
                   fmt::format("has the candidates of layer {} and chooses nothing", plan.candidates),
                   "candidates where entries are chosen");
    if (plan.candidates >= 0 && plans[static_cast<size_t>(plan.candidates)].entries != plan.entries)
      return Fault(
          what, plan,
          fmt::format("is bound by the candidates of layer {}, which reads other entries", plan.candidates),
          "candidates among its own entries");
  }
  return {};
}

std::vector<LayerPlan> PlansOfStage(std::span<const LayerPlan> plans, const Range& layers) {
  DSV4_CHECK(0 <= layers.begin && layers.end <= static_cast<int64_t>(plans.size()))
      << layers.begin << ", " << layers.end << " of " << plans.size();
  const auto first = static_cast<int>(layers.begin);
  std::vector<LayerPlan> stage(plans.begin() + layers.begin, plans.begin() + layers.end);
  for (LayerPlan& plan : stage) {
    plan.window -= first;
    for (const Owner& kind : kOwners) {
      int& owner = plan.*kind.member;
      if (owner < 0) continue;
      DSV4_CHECK(owner >= first) << "layer " << plan.number << " reads the " << kind.name << " of layer "
                                 << owner << ", which another stage has";
      owner -= first;
    }
  }
  return stage;
}

bool MayBeginStage(std::span<const LayerPlan> plans, int64_t begin) {
  return std::all_of(plans.begin() + begin, plans.end(), [&](const LayerPlan& plan) {
    return std::all_of(kOwners.begin(), kOwners.end(), [&](const Owner& kind) {
      return plan.*kind.member < 0 || plan.*kind.member >= begin;
    });
  });
}

int64_t MostStages(std::span<const LayerPlan> plans) {
  int64_t stages = 0;
  for (int64_t i = 0; i < std::ssize(plans); ++i) stages += MayBeginStage(plans, i) ? 1 : 0;
  return stages;
}

}  // namespace dsv4::model
