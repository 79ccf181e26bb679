// Workload: what the clients of `bench --server` ask: prompts of a mix, of a file or of random words, and sessions of agents.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "apps/bench/bench_server.h"
#include "base/json.h"
#include "base/status.h"

namespace dsv4::apps {

// A prompt, and how long its answer is.
struct LoadPrompt {
  Json messages;
  int64_t output_tokens = 0;  // 0: ServerBenchOptions::output_tokens.
};

// Prompts of a dataset: an array of objects, or one object a line. Each has `messages`, `prompt` or ShareGPT's `conversations`, of which the
// first question and its answer count. Lengths of answers are `output_tokens` or `max_tokens`, else those of the answer of a conversation, which
// `count` tells. Objects without a question are left out with a warning, as are those behind the first 2000 prompts. InvalidArgument where
// none has a question, or a length is none.
Result<std::vector<LoadPrompt>> ParseDataset(const std::string& text, const std::string& name,
                                             const std::function<Result<int64_t>(const std::string&)>& count);

class Workload {
 public:
  // Reads files, and asks the server how many tokens texts have. The options outlive it.
  static Result<Workload> Make(const ServerBenchOptions& options);

  // Every prompt has its number of the list below; without a list each is one that no request had before.
  bool unique() const { return prompts_.empty(); }
  size_t num_prompts() const { return prompts_.size(); }
  std::string Body(size_t number, Feature feature) const;

  // Text of about so many tokens.
  std::string RandomTokens(std::mt19937_64& random, int64_t tokens) const;
  // A greedy request, so that an answer is the same whenever it is asked for.
  static std::string BodyOf(const Json& messages, int64_t output_tokens, Feature feature = Feature::kNone);

 private:
  explicit Workload(const ServerBenchOptions& options) : options_(&options) {}
  Status Calibrate();
  // Within the spread around it.
  int64_t Length(std::mt19937_64& random, int64_t middle) const;

  const ServerBenchOptions* options_;
  std::vector<LoadPrompt> prompts_;
  double words_per_token_ = 1.0;
};

// An agent's session: turns that each send the whole conversation and a piece more. The pieces are of one length, so of `turns` turns 2 in
// turns + 1 parts of the input are new.
class AgentSession {
 public:
  // Begins with turn `first_turn`, whose earlier turns are of random text. The workload outlives it.
  AgentSession(const Workload& workload, const ServerBenchOptions& options, uint64_t seed,
               int64_t first_turn);

  // The request of the next turn; a new session begins behind the last.
  std::string NextBody();
  void Take(const std::string& answer);
  // A new session.
  void Begin();

 private:
  void AddTurn();

  const Workload& workload_;
  const ServerBenchOptions& options_;
  std::mt19937_64 random_;
  Json messages_;
  int64_t turn_ = 0;
};

}  // namespace dsv4::apps
