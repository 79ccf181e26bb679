// Options that more than one subcommand takes. What is parsed goes into the structs, which must outlive the
// parser.
#pragma once

#include <CLI/CLI.hpp>

#include "apps/shared/run_options.h"

namespace dsv4::apps {

// Bounds whose errors say what was got and wanted, without a range of 300 digits.
inline constexpr double kNoBound = 1e18;  // Infinity is refused all the same.
CLI::Validator Positive(double max = kNoBound);
CLI::Validator NonNegative(double max = kNoBound);
// Numbers from `low` to `high`. CLI::Range takes NaN, and says its bounds with six decimals.
CLI::Validator Between(double low, double high);
// An option of numbers that commas separate, one at least. `each` checks them; it refuses an empty one. `values` must outlive `app`.
CLI::Option* AddNumbers(CLI::App& app, const std::string& name, std::vector<double>& values,
                        CLI::Validator each, const std::string& help);
// The parser takes a negative number as 2^64 less it, and a larger one as the largest.
CLI::Validator Seed();
CLI::Validator KnownRevision();
// Port of a listening socket; 0: a free one.
CLI::Validator Port();

// Options that every subcommand takes, before or after its name.
void AddModelFlags(CLI::App& app, ModelFlags& flags);
// Which rank has what: of the subcommands that run a model over ranks, or plan to.
void AddPlacementFlag(CLI::App& app, ModelFlags& flags);
// Options that the subcommands that run one model over several ranks take, with the placement. On GPUs it is
// usually for "latency", or for nothing where the bits of one rank matter.
void AddRankFlags(CLI::App& app, ModelFlags& flags, const std::string& usually_for);
inline constexpr const char* kRanksGroup = "Several ranks";  // The group of help texts that has them.
// Options for what the answer may be; one of them at most.
void AddContentFlags(CLI::App& app, ContentFlags& flags);
void AddSamplingFlags(CLI::App& app, RunOptions& options);
// The conversation that `run` answers and `diagnose` looks at.
void AddConversationFlags(CLI::App& app, RunOptions& options);

}  // namespace dsv4::apps
