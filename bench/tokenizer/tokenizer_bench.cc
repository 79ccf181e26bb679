// Speed of Tokenizer::Encode on one core, in MB/s (10^6 bytes of text per second).
//
//   tokenizer_bench [--tokenizer tokenizer.json] [TEXT...]
//
// Without arguments: the release's vocabulary on the prose and code of this repository. Before it times
// anything it compares the ids with those of the slow path: PCRE2 for the splits and BPE by definition. It
// refuses to time a wrong encoder. `first` is a new tokenizer's first call, `again` the median of further
// calls on the same text. Times are CPU times, not wall-clock times: encoding is one thread that waits for
// nothing, and the machine may be busy.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/read_file.h"
#include "tokenizer/bpe.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/testing.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_file.h"
#include "tokenizer/vocabulary.h"

namespace dsv4::tokenizer {
namespace {

constexpr int kNumRepeats = 7;

double ProcessorSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// The ids of `text`, which holds no added token, by PCRE2 and the definition of BPE.
Result<std::vector<TokenId>> SlowEncode(std::string_view tokenizer_json, std::string_view text) {
  DSV4_ASSIGN_OR_RETURN(const TokenizerFile file, ParseTokenizerFile(tokenizer_json, "tokenizer"));
  DSV4_ASSIGN_OR_RETURN(const Vocabulary vocabulary, Vocabulary::Create(file.vocab, file.added_tokens));
  DSV4_ASSIGN_OR_RETURN(const Bpe bpe, Bpe::Create(vocabulary, file.merges));
  DSV4_ASSIGN_OR_RETURN(const auto pre_tokenizer, MakeRegexPreTokenizer(file.split_rules));
  std::vector<TokenId> ids;
  DSV4_TRY(pre_tokenizer->Split(text, [&](std::string_view piece) {
    const std::vector<TokenId> piece_ids = testing::NaiveBpe(bpe, piece);
    ids.insert(ids.end(), piece_ids.begin(), piece_ids.end());
  }));
  return ids;
}

Status Measure(std::string_view tokenizer_json, const std::string& name, const std::string& text) {
  const double load_start = ProcessorSeconds();
  DSV4_ASSIGN_OR_RETURN_STATUS(const Tokenizer tokenizer, Tokenizer::Parse(tokenizer_json, "tokenizer"));
  const double load_seconds = ProcessorSeconds() - load_start;

  const double first_start = ProcessorSeconds();
  // Data spans: no added token is looked for, as in SlowEncode.
  const std::vector<TextSpan> spans = {{text, false}};
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<TokenId> ids, tokenizer.Encode(spans));
  const double first_seconds = ProcessorSeconds() - first_start;

  DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<TokenId> expected, SlowEncode(tokenizer_json, text));
  if (ids != expected) {
    const auto at =
        std::mismatch(ids.begin(), ids.end(), expected.begin(), expected.end()).first - ids.begin();
    return Internal(fmt::format("{}: the ids differ from the slow path's from index {} on", name, at));
  }

  std::vector<double> seconds;
  for (int i = 0; i < kNumRepeats; ++i) {
    const double start = ProcessorSeconds();
    DSV4_ASSIGN_OR_RETURN_STATUS(const std::vector<TokenId> again, tokenizer.Encode(text));
    seconds.push_back(ProcessorSeconds() - start);
  }
  std::sort(seconds.begin(), seconds.end());
  const double megabytes = static_cast<double>(text.size()) * 1e-6;
  fmt::print("{:<40} {:8.2f} MB  {:9} ids  first {:6.1f} MB/s  again {:6.1f} MB/s  load {:5.0f} ms\n", name,
             megabytes, ids.size(), megabytes / first_seconds, megabytes / seconds[kNumRepeats / 2],
             load_seconds * 1e3);
  return {};
}

// The text files of this repository, which is prose and code.
std::string RepositoryText() {
  std::vector<std::filesystem::path> paths;
  for (const char* root : {"README.md", "docs", "src", "tools"}) {
    if (std::filesystem::is_regular_file(root)) paths.emplace_back(root);
    if (!std::filesystem::is_directory(root)) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
      const auto extension = entry.path().extension();
      if (entry.is_regular_file() &&
          (extension == ".md" || extension == ".h" || extension == ".cc" || extension == ".py")) {
        paths.push_back(entry.path());
      }
    }
  }
  std::sort(paths.begin(), paths.end());
  std::string text;
  for (const auto& path : paths) text += ReadFile(path.string()).value_or("");
  return text;
}

int Main(const std::vector<std::string>& arguments) {
  std::string tokenizer_json;
  std::vector<std::pair<std::string, std::string>> texts;
  const auto fail = [](const Status& status) {
    fmt::print(stderr, "tokenizer_bench: {}\n", status.ToString());
    return 1;
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool is_tokenizer = arguments[i] == "--tokenizer" && i + 1 < arguments.size();
    const std::string& path = is_tokenizer ? arguments[++i] : arguments[i];
    auto text = ReadFile(path);
    if (!text) return fail(text.error());
    if (is_tokenizer) {
      tokenizer_json = std::move(*text);
    } else {
      texts.emplace_back(std::filesystem::path(path).filename().string(), std::move(*text));
    }
  }
  if (tokenizer_json.empty()) tokenizer_json = testing::ReadReleaseFile();
  if (texts.empty()) texts.emplace_back("this repository", RepositoryText());
  for (const auto& [name, text] : texts) {
    const Status status = Measure(tokenizer_json, name, text);
    if (!status.ok()) return fail(status);
  }
  return 0;
}

}  // namespace
}  // namespace dsv4::tokenizer

int main(int argc, char** argv) { return dsv4::tokenizer::Main({argv + 1, argv + argc}); }
