// Check `prompt`: template, ids and merges against another engine's, with the first difference and its usual
// cause.
#include "apps/diagnose/diagnose_prompt.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "apps/terminal/printable.h"
#include "base/read_file.h"
#include "base/text.h"
#include "tokenizer/tokenizer_file.h"

namespace dsv4::apps {
namespace {

using tokenizer::TokenId;

constexpr size_t kContext = 4;  // Tokens shown on either side of a difference.

std::string Without(std::string text, std::string_view what) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at))
    text.erase(at, what.size());
  return text;
}

std::string WithoutSpace(const std::string& text) {
  std::string kept;
  std::copy_if(text.begin(), text.end(), std::back_inserter(kept),
               [](char c) { return c != ' ' && c != '\n' && c != '\t' && c != '\r'; });
  return kept;
}

// Other ways to render the same conversation, each with what is wrong with a prompt that looks like it.
struct Variant {
  std::string suspect;
  std::string text;
};

std::vector<Variant> Variants(const TextSubject& subject) {
  std::vector<Variant> variants;
  const auto add = [&](std::string suspect, const chat::ChatProfile& profile,
                       const chat::RenderOptions& options) {
    Result<std::string> text = RenderText(profile, subject.messages, options);
    if (text)
      variants.push_back({std::move(suspect), std::move(*text)});  // Not every revision knows every option.
  };
  chat::RenderOptions options = subject.render;
  options.add_bos = false;
  add(fmt::format("no {} at the start", subject.profile->bos), *subject.profile, options);
  options = subject.render;
  const bool thinking = options.mode == chat::ThinkingMode::kThinking;
  options.mode = thinking ? chat::ThinkingMode::kChat : chat::ThinkingMode::kThinking;
  add(thinking ? "it is the prompt of chat mode: the reasoning is closed before it begins"
               : "it is the prompt of thinking mode: the reasoning is open",
      *subject.profile, options);
  options = subject.render;
  options.drop_thinking = !options.drop_thinking;
  add("the reasoning of earlier turns is kept where it must be dropped, or dropped where it must be kept",
      *subject.profile, options);
  options = subject.render;
  options.effort = std::nullopt;
  add("no reasoning effort", *subject.profile, options);
  for (const chat::EffortLevel& level : subject.profile->efforts) {
    options.effort = std::string(level.name);
    add(fmt::format("reasoning effort {}", level.name), *subject.profile, options);
  }
  for (const chat::ChatProfile& profile : chat::ChatProfiles()) {
    if (profile.revision == subject.profile->revision) continue;
    add(fmt::format("chat format revision {} instead of {}", profile.revision, subject.profile->revision),
        profile, subject.render);
  }
  return variants;
}

// Causes that usually explain that `theirs` is not `ours`, most telling first.
std::vector<std::string> Suspects(const TextSubject& subject, const std::string& theirs) {
  const std::string& ours = subject.text;
  const chat::ChatProfile& profile = *subject.profile;
  std::vector<std::string> suspects;
  for (const Variant& variant : Variants(subject)) {
    if (variant.text == theirs && variant.text != ours) suspects.push_back(variant.suspect);
  }
  if (!suspects.empty()) return suspects;
  const std::string bos(profile.bos);
  if (theirs == bos + ours) {
    suspects.push_back(fmt::format("{} twice: the template writes it and the tokenizer adds it again", bos));
  }
  for (const std::string_view opener : {profile.think_open, profile.think_close}) {
    if (theirs + std::string(opener) == ours) {
      suspects.push_back(fmt::format("thinking priming: {} is missing after the assistant's marker", opener));
    }
  }
  if (suspects.empty() && ours.starts_with(theirs))
    suspects.push_back("it ends early: the generation prompt is missing or cut");
  if (suspects.empty() && theirs.starts_with(ours) && !WithoutSpace(theirs.substr(ours.size())).empty())
    suspects.push_back("it goes on where our prompt ends: an answer pasted along?");
  if (suspects.empty() && Without(theirs, "\n") == Without(ours, "\n")) {
    suspects.push_back("new lines: V4's template has none around its markers");
  } else if (suspects.empty() && WithoutSpace(theirs) == WithoutSpace(ours)) {
    suspects.push_back("blanks or new lines around markers or texts");
  }
  if (suspects.empty() && !theirs.starts_with(bos))
    suspects.push_back(fmt::format("no {} at the start, and more", bos));
  if (suspects.empty() && theirs.find(profile.user) == std::string::npos) {
    suspects.push_back(fmt::format("no {} in it: glued by hand, or another model's template", profile.user));
  }
  if (suspects.empty())
    suspects.push_back("another system text, another order of messages, or another question");
  return suspects;
}

std::string ShowRange(const TextSubject& subject, const std::vector<TokenId>& ids, size_t at) {
  std::string text;
  const size_t end = std::min(at + kContext, ids.size());
  for (size_t i = at < kContext ? 0 : at - kContext; i < end; ++i) {
    text += fmt::format("{}{}{} {}", text.empty() ? "" : ", ", i == at ? ">> " : "", ids[i],
                        ShowToken(subject.tokenizer, ids[i]));
  }
  if (at >= ids.size()) text += ", >> end";
  return text;
}

size_t FirstDifference(const auto& a, const auto& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

// Markers of the template that the tokenizer does not have as one added token.
std::vector<std::string> SplitMarkers(const TextSubject& subject) {
  std::vector<std::string> split;
  for (const std::string_view marker : subject.profile->RequiredTokens()) {
    const Result<std::vector<TokenId>> ids = subject.tokenizer.Encode(marker);
    if (!ids || ids->size() != 1) split.emplace_back(marker);
  }
  return split;
}

void CompareIds(const TextSubject& subject, const std::vector<TokenId>& theirs, diag::CheckReport& report) {
  if (theirs == subject.ids) {
    report.evidence.push_back(fmt::format("the other prompt has the same {}", Counted(theirs.size(), "id")));
    return;
  }
  const size_t at = FirstDifference(subject.ids, theirs);
  report.verdict = diag::Verdict::kFinding;
  report.headline = fmt::format("the ids differ from token {} on ({} here, {} there)", at,
                                Counted(subject.ids.size(), "id"), theirs.size());
  report.evidence.push_back(fmt::format("here:  {}", ShowRange(subject, subject.ids, at)));
  report.evidence.push_back(fmt::format("there: {}", ShowRange(subject, theirs, at)));
  const std::string text = subject.tokenizer.Decode(theirs);
  if (text == subject.text) {
    report.evidence.push_back(
        at < subject.ids.size() && subject.tokenizer.IsAdded(subject.ids[at])
            ? fmt::format(
                  "suspect: the marker {} was split into ordinary tokens: special tokens were not parsed",
                  ShowToken(subject.tokenizer, subject.ids[at]))
            : "suspect: the same text cut otherwise: another tokenizer file or pre-tokenizer");
    return;
  }
  for (const std::string& suspect : Suspects(subject, text)) report.evidence.push_back("suspect: " + suspect);
}

// The verdict on a prompt that is ours and one new line more: only the other engine's user knows whether it
// is the file's.
void ReportLastNewLine(const TextSubject& subject, diag::CheckReport& report) {
  report.verdict = diag::Verdict::kFinding;
  report.headline = fmt::format("the other prompt is ours with one new line more, at its end ({} here)",
                                Counted(subject.text.size(), "byte"));
  report.evidence.push_back(
      "suspect: a text editor or echo wrote it behind the prompt: write the file with printf %s, or give "
      "ids");
  report.evidence.push_back(fmt::format(
      "suspect: thinking priming: the templates of R1 and V3.1 end with a new line behind {}, V4's does not",
      subject.profile->think_open));
}

void CompareTexts(const TextSubject& subject, const std::string& theirs, diag::CheckReport& report) {
  if (theirs == subject.text) {
    report.evidence.push_back(
        fmt::format("the other prompt is the same text, {}", Counted(theirs.size(), "byte")));
    return;
  }
  if (theirs == subject.text + "\n") {
    ReportLastNewLine(subject, report);
    return;
  }
  const size_t at = FirstDifference(subject.text, theirs);
  const auto around = [at](const std::string& text) {
    return Printable(fmt::format("{}>>{}", text.substr(at < 30 ? 0 : at - 30, std::min<size_t>(at, 30)),
                                 text.substr(std::min(at, text.size()), 30)));
  };
  report.verdict = diag::Verdict::kFinding;
  report.headline = fmt::format("the texts differ from byte {} on ({} here, {} there)", at,
                                Counted(subject.text.size(), "byte"), theirs.size());
  report.evidence.push_back("here:  " + around(subject.text));
  report.evidence.push_back("there: " + around(theirs));
  for (const std::string& suspect : Suspects(subject, theirs))
    report.evidence.push_back("suspect: " + suspect);
}

// How many merges stand in front of or behind where the ids of their tokens say. Training numbers tokens as
// it finds their merges, so all stand in one order. A file whose merges were edited keeps the ids.
size_t NumMergesOutOfOrder(const tokenizer::TokenizerFile& file) {
  std::unordered_map<std::string_view, TokenId> ids;
  for (const tokenizer::VocabEntry& entry : file.vocab) ids.emplace(entry.text, entry.id);
  std::vector<TokenId> longest;  // The last ids of the longest ascending runs of each length.
  for (const tokenizer::MergeRule& merge : file.merges) {
    const auto found = ids.find(merge.left + merge.right);
    if (found == ids.end()) return 0;
    const auto place = std::ranges::lower_bound(longest, found->second);
    if (place == longest.end())
      longest.push_back(found->second);
    else
      *place = found->second;
  }
  return file.merges.size() - longest.size();
}

// Empty without a finding. Where many are out of order, ids were given in another way.
std::string MergesComplaint(const TextSubject& subject) {
  constexpr size_t kLeastMerges = 256;
  constexpr size_t kMostShare = 10;
  const std::string path = subject.directory + "/tokenizer.json";
  const Result<std::string> text = ReadFile(path);
  if (!text) return {};
  const Result<tokenizer::TokenizerFile> file = tokenizer::ParseTokenizerFile(*text, path);
  if (!file || file->merges.size() < kLeastMerges) return {};
  const size_t count = NumMergesOutOfOrder(*file);
  if (count == 0 || count > file->merges.size() / kMostShare) return {};
  return fmt::format(
      "{} of {} of tokenizer.json are not where the ids of their tokens say: the list was changed, "
      "and "
      "texts are cut otherwise than in training",
      count, Counted(file->merges.size(), "merge"));
}

}  // namespace

Result<diag::CheckReport> CheckPrompt(const TextSubject& subject, const std::string& against,
                                      const std::string& what) {
  diag::CheckReport report{.check = "prompt"};
  report.evidence = {
      fmt::format("chat format {}, {}, {}", subject.profile->revision,
                  subject.render.mode == chat::ThinkingMode::kThinking ? "thinking mode" : "chat mode",
                  Counted(subject.ids.size(), "token")),
      "text: " + Printable(subject.text)};
  diag::Table table{.title = "tokens", .columns = {"index", "id", "kind", "text"}};
  for (size_t i = 0; i < subject.ids.size(); ++i) {
    table.rows.push_back({std::to_string(i), std::to_string(subject.ids[i]),
                          subject.tokenizer.IsAdded(subject.ids[i]) ? "special" : "text",
                          ShowToken(subject.tokenizer, subject.ids[i])});
  }
  report.tables.push_back(std::move(table));

  if (const std::vector<std::string> split = SplitMarkers(subject); !split.empty()) {
    report.verdict = diag::Verdict::kFinding;
    report.headline = fmt::format("the tokenizer has no single token for {}", split.front());
  } else if (subject.tokenizer.Decode(subject.ids) != subject.text) {
    report.verdict = diag::Verdict::kFinding;
    report.headline = "the ids decode to another text than the one that was encoded";
  } else if (const std::string merges = MergesComplaint(subject); !merges.empty()) {
    report.verdict = diag::Verdict::kFinding;
    report.headline = merges;
  } else if (subject.tokenizer.num_ids() > subject.config.vocab_size) {
    report.verdict = diag::Verdict::kFinding;
    report.headline = fmt::format("tokenizer.json has ids up to {}, the embedding only {}",
                                  subject.tokenizer.num_ids() - 1, Counted(subject.config.vocab_size, "row"));
  } else if (const std::vector<int64_t>& bos = subject.config.bos_token_ids;
             !bos.empty() &&
             std::find(bos.begin(), bos.end(), subject.special->begin_of_sentence) == bos.end()) {
    report.verdict = diag::Verdict::kFinding;
    report.headline =
        fmt::format("config.json names {} as bos_token_id; the tokenizer's is {}, which is used",
                    fmt::join(bos, ", "), subject.special->begin_of_sentence);
  } else if (!against.empty()) {
    DSV4_ASSIGN_OR_RETURN(const std::optional<std::vector<TokenId>> ids, ReadIdList(against, what));
    if (ids) {
      CompareIds(subject, *ids, report);
    } else {
      CompareTexts(subject, against, report);
    }
  }
  if (report.verdict == diag::Verdict::kFinding) {
    report.ends_run = true;
    report.next_step =
        "make the prompts the same before anything else: no kernel comparison can see a wrong prompt";
    return report;
  }
  report.headline = against.empty()
                        ? "rendered and encoded as the release does; nothing given to compare with"
                        : "the other prompt is the same";
  if (against.empty()) {
    report.next_step = "give the other engine's rendering or ids with --against FILE";
  } else {
    report.rules_out = {"the prompt: template, markers, thinking priming, BOS, effort, tokenizer"};
    report.next_step = "dsv4 diagnose stop-set";
  }
  return report;
}

}  // namespace dsv4::apps
