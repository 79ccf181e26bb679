// `knowledge`, `indexer` and `router`: the text of facts as tokens, as long as the machine affords.
#include "apps/diagnose/diagnose_knowledge.h"

#include <fmt/format.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/diagnose/diagnose_compare.h"
#include "base/json.h"
#include "base/read_file.h"
#include "base/text.h"
#include "diag/checks/indexer_check.h"
#include "diag/checks/knowledge_check.h"
#include "diag/checks/router_check.h"

namespace dsv4::apps {
namespace {

// Countries whose capital stands in every corpus, in no order that a list would have.
constexpr std::array<std::pair<std::string_view, std::string_view>, 17> kCapitals = {{
    {"Japan", "Tokyo"},
    {"Italy", "Rome"},
    {"Egypt", "Cairo"},
    {"Spain", "Madrid"},
    {"Germany", "Berlin"},
    {"Russia", "Moscow"},
    {"Greece", "Athens"},
    {"Portugal", "Lisbon"},
    {"Austria", "Vienna"},
    {"Peru", "Lima"},
    {"Cuba", "Havana"},
    {"Ireland", "Dublin"},
    {"Kenya", "Nairobi"},
    {"France", "Paris"},
    {"Norway", "Oslo"},
    {"Hungary", "Budapest"},
    {"Poland", "Warsaw"},
}};

// Multiplications that a backend does in some seconds.
double AffordableWork(const std::string& backend) {
  if (backend == "reference") return 3e10;
  return backend == "cuda" ? 1e15 : 3e11;
}

// Every piece begins where a word does, so that it has the tokens that it has in the whole text.
Result<diag::KnownText> MakeText(const TextSubject& subject) {
  diag::KnownText text;
  text.tokens = {subject.special->begin_of_sentence};
  const auto append = [&](const std::string& piece, bool in_form) -> Status {
    DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<tokenizer::TokenId> ids, subject.tokenizer.Encode(piece));
    for (size_t i = 0; in_form && i < ids.size(); ++i)
      text.form.push_back(static_cast<int64_t>(text.tokens.size() + i));
    text.tokens.insert(text.tokens.end(), ids.begin(), ids.end());
    return {};
  };
  for (const auto& [country, capital] : kCapitals) {
    const char* space = text.answers.empty() ? "" : " ";
    const bool in_form = text.answers.size() > 3;
    DSV4_TRY(append(fmt::format("{}The capital of", space), in_form));
    DSV4_TRY(append(fmt::format(" {}", country), false));
    DSV4_TRY(append(" is", in_form));
    const auto first = static_cast<int64_t>(text.tokens.size());
    DSV4_TRY(append(fmt::format(" {}", capital), false));
    const auto count = static_cast<int64_t>(text.tokens.size()) - first;
    text.answers.push_back({std::string(country), std::string(capital), first, count});
    DSV4_TRY(append(".", in_form));
  }
  text.show = [&subject](int32_t token) { return ShowToken(subject.tokenizer, token); };
  return text;
}

}  // namespace

Result<bool> HasRandomWeights(const ModelSource& source) {
  if (source.synthetic()) return true;
  const std::string path = source.name() + "/config.json";
  DSV4_ASSIGN_OR_RETURN(const std::string file, ReadFile(path));
  DSV4_ASSIGN_OR_RETURN(const Json config, ParseJson(file, path));
  return config.is_object() && config.value("random_weights", Json(false)) == Json(true);
}

Result<diag::CheckReport> RunKnowledge(DiagnoseSession& session) {
  DSV4_ASSIGN_OR_RETURN(const bool random, HasRandomWeights(session.source()));
  if (random) {
    return diag::NotApplicable({.check = "knowledge"}, "the weights are random, so the model knows nothing");
  }
  DSV4_ASSIGN_OR_RETURN(const TextSubject* subject, session.Text());
  DSV4_ASSIGN_OR_RETURN(const diag::KnownText text, MakeText(*subject));
  DSV4_TRY(session.CheckIds(text.tokens, "tokenizer.json"));
  DSV4_ASSIGN_OR_RETURN(const diag::Subject model, session.Model());
  const double work = WorkPerToken(model.model) * static_cast<double>(text.tokens.size()) *
                      static_cast<double>(2 * model.model.num_layers());
  const bool leave_out =
      session.options().check != "all" || work <= AffordableWork(session.options().run.model.backend);
  return diag::CheckKnowledge(model, text, leave_out);
}

Result<diag::CheckReport> RunIndexer(DiagnoseSession& session) {
  const diag::CheckReport nothing{.check = "indexer"};
  DSV4_ASSIGN_OR_RETURN(const bool random, HasRandomWeights(session.source()));
  if (random) return NotApplicable(nothing, "the weights are random, so nothing has taught the indexers");
  DSV4_ASSIGN_OR_RETURN(const TextSubject* subject, session.Text());
  DSV4_ASSIGN_OR_RETURN(const diag::Subject model, session.Model());
  const int64_t num_tokens = diag::IndexerTextTokens(model.model);
  const int64_t most = model.model.config().max_position_embeddings;
  if (num_tokens > most) {
    return NotApplicable(nothing, fmt::format("{} are needed to have a choice, the model holds {}",
                                              Counted(num_tokens, "token"), most));
  }
  const double work = WorkPerToken(model.model) * static_cast<double>(num_tokens);
  if (session.options().check == "all" && work > AffordableWork(session.options().run.model.backend)) {
    return NotApplicable(
        nothing, fmt::format("it reads {}, which takes long here; by itself it runs: dsv4 diagnose indexer",
                             Counted(num_tokens, "token")));
  }
  DSV4_ASSIGN_OR_RETURN(const diag::KnownText text, MakeText(*subject));
  DSV4_TRY(session.CheckIds(text.tokens, "tokenizer.json"));
  std::vector<int32_t> tokens = text.tokens;
  // Behind its first token, which opens the text.
  const size_t period = tokens.size() - 1;
  while (std::ssize(tokens) < num_tokens) tokens.push_back(tokens[tokens.size() - period]);
  return diag::CheckIndexer(model, tokens);
}

Result<diag::CheckReport> RunRouter(DiagnoseSession& session) {
  const diag::CheckReport nothing{.check = "router"};
  DSV4_ASSIGN_OR_RETURN(const bool random, HasRandomWeights(session.source()));
  if (random) return NotApplicable(nothing, "the weights are random, so nothing has taught the routers");
  DSV4_ASSIGN_OR_RETURN(const TextSubject* subject, session.Text());
  DSV4_ASSIGN_OR_RETURN(const diag::Subject model, session.Model());
  if (session.options().check == "all" &&
      diag::RouterCheckWork(model.model) > AffordableWork(session.options().run.model.backend)) {
    return NotApplicable(
        nothing, "it computes many experts, which takes long here; by itself it runs: dsv4 diagnose router");
  }
  DSV4_ASSIGN_OR_RETURN(const diag::KnownText text, MakeText(*subject));
  DSV4_TRY(session.CheckIds(text.tokens, "tokenizer.json"));
  return diag::CheckRouter(model, text.tokens);
}

}  // namespace dsv4::apps
