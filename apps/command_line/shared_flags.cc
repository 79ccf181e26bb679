// Registration of options that several commands take: model, ranks, content, sampling, conversation.
#include "apps/command_line/shared_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "apps/shared/choose_backend.h"
#include "chat/profile.h"
#include "model/synthetic/synthetic.h"

namespace dsv4::apps {
namespace {

// NaN is outside of every range.
CLI::Validator Bound(bool zero, double max) {
  const std::string wanted = (zero ? "0 or more" : "more than 0") +
                             (max < kNoBound ? fmt::format(", at most {:.0f}", max) : std::string());
  return CLI::Validator(
      [=](const std::string& text) {
        double value = 0.0;
        if (!CLI::detail::lexical_cast(text, value)) return "got '" + text + "', wanted a number";
        if ((value > 0.0 || (zero && value == 0.0)) && value <= max) return std::string();
        const bool beyond = value > max && max == kNoBound;
        return "got " + text + ", wanted " + wanted + (beyond ? fmt::format(", at most {}", max) : "");
      },
      wanted);
}

// Complaint of ValidateSamplingParams about one of them, before a model is loaded and whether or not a
// command will sample.
template <typename T>
CLI::Validator SamplingRange(T sampling::SamplingParams::*field, const std::string& wanted) {
  return CLI::Validator(
      [=](const std::string& text) {
        sampling::SamplingParams params;
        if (!CLI::detail::lexical_cast(text, params.*field)) return "got '" + text + "', wanted a number";
        const bool valid = sampling::ValidateSamplingParams(params, std::numeric_limits<int64_t>::max()).ok();
        return valid ? std::string() : "got " + text + ", wanted " + wanted;
      },
      wanted);
}

std::set<const CLI::Option*> OptionsOf(CLI::App& app) {
  const std::vector<CLI::Option*> options = app.get_options();
  return {options.begin(), options.end()};
}

// Puts the options that were added since `before` under one heading of the help text.
void GroupNew(CLI::App& app, const std::set<const CLI::Option*>& before, const std::string& heading) {
  for (CLI::Option* option : app.get_options()) {
    if (before.count(option) == 0) option->group(heading);
  }
}

}  // namespace

CLI::Validator KnownRevision() {
  return CLI::Validator(
      [](const std::string& text) {
        const auto profile = chat::FindChatProfile(text);
        return profile ? std::string() : profile.error().message();
      },
      "v4|v4-0731|v4.1");
}

CLI::Validator Port() {
  return CLI::Validator(
      [](const std::string& text) {
        uint16_t port = 0;
        return CLI::detail::lexical_cast(text, port) ? std::string()
                                                     : "got '" + text + "', wanted a port: 0 to 65535";
      },
      "");
}

CLI::Option* AddNumbers(CLI::App& app, const std::string& name, std::vector<double>& values,
                        CLI::Validator each, const std::string& help) {
  const auto take = [&values, name, each = std::move(each)](const std::string& text) {
    values.clear();
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find(',', begin), text.size());
      std::string item = text.substr(begin, end - begin);
      if (const std::string complaint = each(item); !complaint.empty())
        throw CLI::ValidationError(name, fmt::format("'{}': {}", text, complaint));
      values.emplace_back();
      CLI::detail::lexical_cast(item, values.back());
      begin = end + 1;
    }
  };
  return app.add_option_function<std::string>(name, take, help)->type_name("N,N,...");
}

CLI::Validator Positive(double max) { return Bound(false, max); }
CLI::Validator NonNegative(double max) { return Bound(true, max); }

CLI::Validator Between(double low, double high) {
  const std::string wanted = fmt::format("{} to {}", low, high);
  return CLI::Validator(
      [=](const std::string& text) {
        double value = 0.0;
        if (!CLI::detail::lexical_cast(text, value)) return "got '" + text + "', wanted a number";
        return value >= low && value <= high ? std::string() : "got " + text + ", wanted " + wanted;
      },
      wanted);
}

CLI::Validator Seed() {
  return CLI::Validator(
      [](const std::string& text) {
        uint64_t seed = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
        if (error == std::errc() && end == text.data() + text.size()) return std::string();
        return "got " + text + ", wanted 0 or more, less than 2^64";
      },
      "0 or more");
}

void AddModelFlags(CLI::App& app, ModelFlags& flags) {
  CLI::Option* directory =
      app.add_option("-m,--model", flags.model,
                     "Checkpoint directory or a pulled model (default: DSV4_MODEL, else the small model)");
  app.add_option("--weights", flags.weights, "In place of -m, random weights in memory")
      ->excludes(directory)
      ->check(
          [](const std::string& value) {
            const auto parsed = model::ParseSyntheticName(value);
            return parsed ? std::string() : parsed.error().message();
          },
          "synthetic:SHAPE[,FORMAT][,seed=N]");
  flags.backend = kBackendAuto;
  app.add_option("--backend", flags.backend, "Where the model runs; auto: a usable GPU, else the CPU")
      ->check(CLI::IsMember({kBackendAuto, "reference", "cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--numerics", flags.numerics, "release: every rounding of the release; plain: none")
      ->check(CLI::IsMember({"release", "plain"}))
      ->capture_default_str();
  app.add_option("--max-layers", flags.max_layers, "Run only the first N layers (0: all)")
      ->check(NonNegative())
      ->capture_default_str();
  app.add_option("-t,--threads", flags.num_threads, "Host threads (0: one a core)")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  app.add_option("--numa", flags.numa, "Weights over the memory of all NUMA nodes; auto: where it pays")
      ->check(CLI::IsMember({"off", "interleave", "auto"}))
      ->capture_default_str();
  app.add_option("--pass-tokens", flags.pass_tokens,
                 "Most tokens of one pass through the layers (0: 512 on the host, 8192 on a GPU)")
      ->check(CLI::Range(0, 65536))
      ->capture_default_str();
  app.add_option(
      "--experts", flags.experts,
      "On a GPU, where a layer's routed experts are: auto, or resident=N,cached=N,host=N, "
      "numbers or shares such as 75% (default: all resident). On the CPU, disk: they are read from "
      "disk "
      "when they are chosen (default: where memory has no room for all)");
  app.add_option("--gpu-memory", flags.gpu_memory,
                 "The most that is taken of the GPU's memory, in GB (0: what is free)")
      ->check(NonNegative())
      ->capture_default_str();
  app.add_option("--expert-profile", flags.expert_profile,
                 "With --experts, which of them are chosen often: a file of `dsv4 experts profile`, or off "
                 "(default: the "
                 "model's own, where it was kept)");
  app.add_option("--host-memory", flags.host_memory,
                 "With --experts, the most that cached ones and those of the host take of the host's memory, "
                 "in GB (0: what is available)")
      ->check(NonNegative())
      ->capture_default_str();
  app.add_option(
         "--cache-rows", flags.cache_rows,
         "packed: cache rows that release numerics round are kept as FP8 and FP4; wide: as bf16, in twice "
         "the memory, with the same bits")
      ->check(CLI::IsMember({"packed", "wide"}))
      ->capture_default_str();
  app.add_option(
         "--draft-head", flags.draft_head,
         "Of a draft block: projects drafts with the model's head as it is stored, or with a copy of it "
         "in fewer bits; the answer is the same (auto: nvfp4 on a GPU, else stored)")
      ->check(CLI::IsMember({"auto", "stored", "fp8", "nvfp4"}))
      ->capture_default_str();
  app.add_option("--shared-expert-clamp", flags.shared_expert_clamp,
                 "off: as the first release revision, whose shared expert has no SwiGLU clamp")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str();
}

void AddPlacementFlag(CLI::App& app, ModelFlags& flags) {
  app.add_option("--placement", flags.placement,
                 "Which rank has what: auto, pipeline, tensor, tensor,entries, expert, expert,sequences, "
                 "expert,entries, or pipeline=STAGES,X with one of these as X")
      ->capture_default_str();
}

void AddRankFlags(CLI::App& app, ModelFlags& flags, const std::string& usually_for) {
  app.preparse_callback([&flags, usually_for](size_t) { flags.usually_for = usually_for; });
  const std::set<const CLI::Option*> before = OptionsOf(app);
  app.add_option(
         "--ranks", flags.num_ranks,
         "Processes that run the model together, started here (0: as RANK and WORLD_SIZE say, else 1)")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  app.add_option_function<int>(
         "--gpus",
         [&flags](int count) {
           flags.num_ranks = count;
           flags.backend = "cuda";
         },
         "As many ranks, each on a GPU of this machine")
      ->check(CLI::Range(1, 64))
      ->excludes("--ranks");
  // The other way round too, by the parser; said once in the help of --backend, which all these commands
  // share.
  CLI::Option* backend = app.get_parent()->get_option("--backend");
  CLI::Option* gpus = app.get_option("--gpus");
  const std::set<CLI::Option*> named = backend->get_excludes();
  gpus->excludes(backend);
  if (std::any_of(named.begin(), named.end(),
                  [](const CLI::Option* other) { return other->get_name() == "--gpus"; })) {
    backend->remove_excludes(gpus);
  }
  app.add_flag(
      "--peer-exchange,!--no-peer-exchange", flags.peers,
      "Exchanges between GPUs go by kernels over peer memory, not by NCCL (default: where they can)");
  AddPlacementFlag(app, flags);
  app.add_option("--for", flags.placed_for,
                 "What auto places for: latency (tensor), or throughput of many long contexts "
                 "(expert,sequences). Not said: latency on GPUs (logits: expert), expert on hosts")
      ->check(CLI::IsMember({"latency", "throughput"}))
      ->excludes("--placement");
  app.add_option("--rank-timeout", flags.rank_timeout_seconds,
                 "Seconds for which a rank waits for another before the group ends")
      ->check(Positive())
      ->capture_default_str();
  app.add_option("--rank-network", flags.rank_network,
                 "How ranks exchange: auto (memory on one machine, else TCP) or tcp")
      ->check(CLI::IsMember({"auto", "tcp"}))
      ->capture_default_str();
  GroupNew(app, before, kRanksGroup);
}

void AddContentFlags(CLI::App& app, ContentFlags& flags) {
  const std::set<const CLI::Option*> before = OptionsOf(app);
  const std::vector<CLI::Option*> options = {
      app.add_option("--json-schema", flags.json_schema_path,
                     "The answer is JSON that satisfies the schema in this file"),
      app.add_flag("--json-object", flags.json_object, "The answer is a JSON object"),
      app.add_option("--regex", flags.regex, "All of the answer matches this regular expression"),
      app.add_option("--choice", flags.choices, "The answer is this text; given again: one of these")
          ->allow_extra_args(false),
      app.add_option("--grammar", flags.grammar_path,
                     "The answer is a text of the GBNF or Lark grammar in this file"),
      app.add_option("--structural-tag", flags.structural_tag_path,
                     "The answer obeys the structural tag (JSON) in this file")};
  for (CLI::Option* one : options) {
    for (CLI::Option* other : options) {
      if (one != other) one->excludes(other);
    }
  }
  GroupNew(app, before, "What the answer may be");
}

void AddSamplingFlags(CLI::App& app, RunOptions& options) {
  using Params = sampling::SamplingParams;
  const std::set<const CLI::Option*> before = OptionsOf(app);
  Params& sampling = options.sampling;
  app.add_option("--temperature", sampling.temperature, "0: greedy")
      ->check(SamplingRange(&Params::temperature, "0 or more"))
      ->capture_default_str();
  app.add_option_function<float>(
         "--top-p",
         [&options](float top_p) {
           options.sampling.top_p = top_p;
           options.top_p_given = true;
         },
         "Smallest set whose probabilities reach P (default: 1, with tools while thinking 0.95)")
      ->check(SamplingRange(&Params::top_p, "more than 0, at most 1"));
  app.add_option("--top-k", sampling.top_k, "The K most probable (0: all)")
      ->check(SamplingRange(&Params::top_k, "0 or more"))
      ->capture_default_str();
  app.add_option("--min-p", sampling.min_p, "At least P times the most probable")
      ->check(SamplingRange(&Params::min_p, "0 or more, less than 1"))
      ->capture_default_str();
  app.add_option("--repetition-penalty", sampling.repetition_penalty,
                 "Divides the logits of seen tokens (1: off)")
      ->check(SamplingRange(&Params::repetition_penalty, "more than 0"))
      ->capture_default_str();
  app.add_option("--presence-penalty", sampling.presence_penalty, "Subtracted once from seen tokens")
      ->check(SamplingRange(&Params::presence_penalty, "a finite number"))
      ->capture_default_str();
  app.add_option("--frequency-penalty", sampling.frequency_penalty, "Subtracted for every occurrence")
      ->check(SamplingRange(&Params::frequency_penalty, "a finite number"))
      ->capture_default_str();
  app.add_option("--penalty-window", sampling.penalty_window,
                 "Penalties see the last N tokens, prompt included (0: all)")
      ->check(SamplingRange(&Params::penalty_window, "0 or more"))
      ->capture_default_str();
  app.add_option_function<std::vector<std::string>>(
         "--logit-bias",
         [&sampling](const std::vector<std::string>& entries) {
           for (const std::string& entry : entries) {
             int id = 0;
             float bias = 0.0F;
             int consumed = 0;
             if (std::sscanf(entry.c_str(), "%d=%f%n", &id, &bias, &consumed) != 2 ||
                 static_cast<size_t>(consumed) != entry.size() || id < 0 || std::isnan(bias)) {
               throw CLI::ValidationError("--logit-bias", "got '" + entry + "', wanted ID=BIAS");
             }
             sampling.logit_bias[id] = bias;
           }
         },
         "ID=BIAS, added to the logit of a token; may be repeated")
      ->allow_extra_args(false)
      ->type_name("ID=BIAS");
  app.add_option_function<uint64_t>(
         "--seed",
         [&options](uint64_t seed) {
           options.sampling.seed = seed;
           options.seed_given = true;
         },
         "Makes a sampled answer repeatable (default: random)")
      ->check(Seed());
  GroupNew(app, before, "Sampling");
}

void AddConversationFlags(CLI::App& app, RunOptions& options) {
  const std::set<const CLI::Option*> before = OptionsOf(app);
  app.add_option("--system", options.system, "System message");
  app.add_option("--messages", options.messages_path, "A conversation as a JSON list, in place of PROMPT")
      ->excludes("PROMPT")
      ->excludes("--system");
  app.add_option("--tools", options.tools_path, "A JSON list of tools the answer may call");
  app.add_option("--thinking-mode", options.thinking_mode, "Reason before answering, or answer at once")
      ->check(CLI::IsMember({"thinking", "chat"}))
      ->capture_default_str();
  app.add_option(
      "--effort", options.effort,
      "Reasoning effort: low, high, max (v4.1: also xhigh, 1 to 100) as the model's revision allows");
  app.add_option("--revision", options.revision,
                 "Chat format: v4, v4-0731 or v4.1 (default: detected from the model)")
      ->check(KnownRevision());
  GroupNew(app, before, "Conversation");
  app.add_flag("--json", options.json, "One JSON document on standard output");
}

}  // namespace dsv4::apps
