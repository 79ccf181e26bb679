// JudgeTrial: judges a plan of experts (expert_choice.h) by a few whole steps. It tells whether they take as
// long as planned. If not, it tells which rate was wrong, and the right one.
//
// The plan is compared for what these steps asked of host and link, which is counted. So neither a cache that
// begins empty nor a model that chooses some experts more often looks like a wrong rate.
//
// A model may be in several stages (placement.h), each with its own device, split and rates. A step goes
// through one after the other.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/placement/expert_choice.h"

namespace dsv4::model {

// Experts of all layers that a step asked for: of the host's, and of the cached ones those that were brought.
struct AskedExperts {
  double host = 0;
  double missed = 0;
};
// Counts where all are chosen equally often and the cache is full.
AskedExperts PlannedAsks(const ExpertSplit& split, const ExpertCosts& costs);

// Time that a step takes that asks for so many.
double StepSeconds(const ExpertSplit& split, const ExpertCosts& costs, const AskedExperts& asked);

// The same of all stages' parts of it.
double StepSeconds(std::span<const ExpertSplit> splits, std::span<const ExpertCosts> costs,
                   std::span<const AskedExperts> asked);

// ExpertCosts::rest of all stages.
double RestOf(std::span<const ExpertCosts> costs);

// Requests of steps to one stage; of a step in the mean.
struct SeenStage {
  double host_seconds = 0;  // Seconds that the host multiplied.
  AskedExperts asked;
  double disk_bytes = 0;  // Bytes that came from disk.
};

// Steps of one sequence.
struct SeenSteps {
  double seconds = 0;  // The median.
  std::vector<SeenStage> stages;
};

// Different steps; and still ones, each like the one before, whose experts are where they have to be.
struct SeenTrial {
  SeenSteps steps;
  SeenSteps still;
};

enum class StepPart : uint8_t { kHost, kLink, kRest };

struct TrialVerdict {
  bool as_planned = false;             // At most kTolerance times what the plan has.
  bool from_disk = false;              // The host's experts came from disk, so still steps were compared.
  double seen = 0;                     // Seconds of a step,
  double planned = 0;                  // and of the plan for what it asked.
  AskedExperts asked;                  // Sum over all stages.
  std::vector<ExpertCosts> corrected;  // By stage: the plan's, but for what was seen.
  StepPart slowest = StepPart::kRest;  // Part that most of the difference comes from,
  size_t slowest_stage = 0;            // where most of that is,
  bool beside = false;                 // and whether host and link run side by side there.
  double full = 0;                     // Time that a step takes once the cache is full.
};

// Rates are of bytes alone, and a step has latencies too. On an H200 steps took up to 1.6 times as long as
// their bytes; the plan's `rest` has a part of that.
inline constexpr double kTolerance = 1.5;

// By stage, all of as many. The host's rates are each stage's own. The link's are what is left to explain, by
// one factor for all of them.
TrialVerdict JudgeTrial(std::span<const ExpertSplit> splits, std::span<const ExpertCosts> costs,
                        const SeenTrial& trial);

// "25.1 ms a step, the plan had 22.0 for the 95 experts of the host and 210 that were brought".
std::string VerdictText(const TrialVerdict& verdict);
// "the host's kernels read 7.5 GB/s where 60.0 were measured"; of the slowest part, with "stage 1: " in front
// where there are several. `costs`: of the plan.
std::string SlowestText(const TrialVerdict& verdict, std::span<const ExpertCosts> costs);

}  // namespace dsv4::model
