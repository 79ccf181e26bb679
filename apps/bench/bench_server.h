// `dsv4 bench --server URL`: a load on a running server, and what its clients saw.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dsv4::apps {

// Demands of a request beside its prompt and the length of its answer. None of them ends an answer early.
enum class Feature : uint8_t {
  kNone,
  kSchema,     // A JSON schema.
  kTool,       // A call of a strict tool.
  kPenalties,  // Penalties of all three kinds.
  kLogprobs,   // Log-probabilities of the chosen token and five more.
};
const char* FeatureName(Feature feature);

struct ServerBenchOptions {
  std::string url;
  std::string api_key;
  std::string
      prompts_path;  // One JSON object with "messages" a line; empty: the mix of kinds that docs/serving.md describes.
  int num_streams = 16;  // Closed loop: so many clients, each asks again when it has its answer.
  double rate =
      0.0;  // Open loop, if more than 0: requests a second, at random times, whatever is still unanswered.
  double seconds = 30.0;             // New requests are made for so long.
  int64_t output_tokens = 64;        // Length of every answer: the end of sentence is not sampled.
  bool output_tokens_given = false;  // They count for a dataset too.
  // Prompts of their own for every request, of so many words, so that no cache has them; 0 and 0: the mix or the file.
  int64_t fewest_words = 0;
  int64_t most_words = 0;
  // The same in tokens, as the server's tokenizer counts them: words are made of the average of a sample.
  int64_t input_tokens = 0;
  double length_spread = 0.0;  // Lengths of such prompts and of answers differ by up to this part of them.
  std::string dataset_path;    // ParseDataset; empty: none.
  // Sessions of growing context, of `turns` turns with `input_tokens` on average.
  bool agents = false;
  int64_t turns = 19;
  // A second load, in which each stream asks for one of these, in turn; empty: none. With its rate as a part of the plain one.
  std::vector<Feature> features;
  double warm_up = 0.0;        // Seconds of load in front of the time that is measured.
  double goodput_first = 0.0;  // Seconds to the first token, and
  double goodput_gap = 0.0;    // on average between tokens, of an answer that is good; 0: any.
  bool check = true;           // Every answer against the one that the same prompt gets alone.
  uint64_t seed = 0;
  bool json = false;
};

// Returns the process exit code: kExitRunFailed when a request failed or an answer was not that of a quiet server.
int RunServerBench(const ServerBenchOptions& options);

}  // namespace dsv4::apps
