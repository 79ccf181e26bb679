// Pre-tokenizer for patterns of other tokenizers, by PCRE2.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>

#include "base/text.h"
#include "base/utf8.h"
#include "tokenizer/pre_tokenizer.h"

namespace dsv4::tokenizer {
namespace {

// A hostile pattern may be as long as the file, and may backtrack for ever.
constexpr size_t kMaxPatternBytes = 64 << 10;
constexpr uint32_t kMatchLimit = 10'000'000;

struct Pcre2Deleter {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_data* match_data) const { pcre2_match_data_free(match_data); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
using Code = std::unique_ptr<pcre2_code, Pcre2Deleter>;
using MatchData = std::unique_ptr<pcre2_match_data, Pcre2Deleter>;
using MatchContext = std::unique_ptr<pcre2_match_context, Pcre2Deleter>;

std::string Pcre2Message(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

// PCRE2's \s takes U+180E and leaves U+0085 to its vertical spaces; \p{White_Space} is the property that
// tokenizer.json patterns mean. It may stand inside and outside of brackets.
Result<std::string> ToPcre2Dialect(std::string_view pattern) {
  std::string out;
  out.reserve(pattern.size());
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      out.push_back(pattern[i]);
      continue;
    }
    const char escaped = pattern[++i];
    switch (escaped) {
      case 's':
        out += "\\p{White_Space}";
        break;
      case 'S':
        out += "\\P{White_Space}";
        break;
      case 'w':
      case 'W':
      case 'h':
      case 'H':
        return Error(Unimplemented(fmt::format(
            "pre_tokenizer pattern \"{}\": \\{} has another meaning in Oniguruma than in PCRE2; write the "
            "Unicode properties instead",
            pattern, escaped)));
      default:
        out.push_back('\\');
        out.push_back(escaped);
    }
  }
  return out;
}

struct Segment {
  size_t begin;
  size_t end;
  bool is_match;
};

struct CompiledRule {
  Code code;
  SplitRule rule;
};

Result<CompiledRule> Compile(const SplitRule& rule) {
  if (rule.pattern.size() > kMaxPatternBytes) {
    return Error(InvalidArgument(fmt::format("pre_tokenizer pattern: got {}, wanted at most {}",
                                             Counted(rule.pattern.size(), "byte"), kMaxPatternBytes)));
  }
  std::string pattern = rule.pattern;
  // PCRE2_LITERAL takes the pattern as it stands and allows few other options.
  uint32_t options = PCRE2_UTF | PCRE2_LITERAL;
  if (!rule.is_literal) {
    DSV4_ASSIGN_OR_RETURN(pattern, ToPcre2Dialect(rule.pattern));
    options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE;
  }
  int error_code = 0;
  PCRE2_SIZE error_offset = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error_code,
                          &error_offset, nullptr));
  if (code == nullptr) {
    return Error(InvalidArgument(
        fmt::format("pre_tokenizer pattern \"{}\": PCRE2 does not compile it: {} (at byte {})", rule.pattern,
                    Pcre2Message(error_code), error_offset)));
  }
  // Without JIT (a pattern it does not know, or a platform without it) PCRE2 interprets: slower, same result.
  (void)pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return CompiledRule{std::move(code), rule};
}

// All matches in `text` and the stretches between them, in order. An empty match cuts where it stands, except
// directly behind the match before it.
Status FindSegments(const CompiledRule& rule, std::string_view text, pcre2_match_data* match_data,
                    pcre2_match_context* context, std::vector<Segment>* segments) {
  segments->clear();
  const bool match_flag = !rule.rule.invert;
  size_t covered = 0;  // Everything before is in a segment.
  size_t start = 0;
  bool has_match = false;
  while (start <= text.size()) {
    const int rc = pcre2_match(rule.code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), start,
                               PCRE2_NO_UTF_CHECK, match_data, context);
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) {
      return ResourceExhausted(fmt::format("pre_tokenizer pattern \"{}\" on a piece of {}: {}",
                                           rule.rule.pattern, Counted(text.size(), "byte"),
                                           Pcre2Message(rc)));
    }
    const PCRE2_SIZE* ovector = pcre2_get_ovector_pointer(match_data);
    // \K inside a look-ahead can put the start behind the end.
    const size_t begin = std::min(ovector[0], ovector[1]);
    const size_t end = ovector[1];
    const bool is_empty = begin == end;
    if (begin >= covered && !(is_empty && has_match && end == covered)) {
      if (begin > covered) segments->push_back({covered, begin, !match_flag});
      segments->push_back({begin, end, match_flag});
      covered = end;
      has_match = true;
    }
    start = end;
    if (is_empty) start += start < text.size() ? DecodeUtf8(text.data() + start).num_bytes : 1;
  }
  if (covered < text.size()) segments->push_back({covered, text.size(), !match_flag});
  return {};
}

// Joins or drops segments as the behaviour wants.
void ApplyBehavior(SplitBehavior behavior, std::vector<Segment>* segments) {
  std::vector<Segment> out;
  out.reserve(segments->size());
  switch (behavior) {
    case SplitBehavior::kIsolated:
      return;
    case SplitBehavior::kRemoved:
      std::erase_if(*segments, [](const Segment& segment) { return segment.is_match; });
      return;
    case SplitBehavior::kContiguous:
      for (const Segment& segment : *segments) {
        if (!out.empty() && out.back().is_match == segment.is_match) {
          out.back().end = segment.end;
        } else {
          out.push_back(segment);
        }
      }
      break;
    case SplitBehavior::kMergedWithPrevious:
      for (size_t i = 0; i < segments->size(); ++i) {
        const Segment& segment = (*segments)[i];
        if (i > 0 && segment.is_match && !(*segments)[i - 1].is_match) {
          out.back().end = segment.end;
        } else {
          out.push_back(segment);
        }
      }
      break;
    case SplitBehavior::kMergedWithNext:
      for (size_t i = segments->size(); i-- > 0;) {
        const Segment& segment = (*segments)[i];
        if (i + 1 < segments->size() && segment.is_match && !(*segments)[i + 1].is_match) {
          out.back().begin = segment.begin;
        } else {
          out.push_back(segment);
        }
      }
      std::reverse(out.begin(), out.end());
      break;
  }
  *segments = std::move(out);
}

class RegexPreTokenizer final : public PreTokenizer {
 public:
  RegexPreTokenizer(std::vector<CompiledRule> rules, MatchContext context)
      : rules_(std::move(rules)), context_(std::move(context)) {}

  Status Split(std::string_view text, const PieceSink& sink) const override {
    // One pair of offsets is enough: the groups of a pattern are of no interest.
    const MatchData match_data(pcre2_match_data_create(1, nullptr));
    if (match_data == nullptr) return ResourceExhausted("pre_tokenizer: no memory for PCRE2's match data");
    std::vector<std::string_view> current = {text};
    std::vector<std::string_view> next;
    std::vector<Segment> segments;
    for (const CompiledRule& rule : rules_) {
      next.clear();
      for (const std::string_view piece : current) {
        DSV4_RETURN_IF_ERROR(FindSegments(rule, piece, match_data.get(), context_.get(), &segments));
        ApplyBehavior(rule.rule.behavior, &segments);
        for (const Segment& segment : segments) {
          if (segment.end > segment.begin)
            next.push_back(piece.substr(segment.begin, segment.end - segment.begin));
        }
      }
      std::swap(current, next);
    }
    for (const std::string_view piece : current) {
      if (!piece.empty()) sink(piece);
    }
    return {};
  }

 private:
  std::vector<CompiledRule> rules_;
  MatchContext context_;
};

}  // namespace

Result<std::unique_ptr<PreTokenizer>> MakeRegexPreTokenizer(const std::vector<SplitRule>& rules) {
  std::vector<CompiledRule> compiled;
  for (const SplitRule& rule : rules) {
    DSV4_ASSIGN_OR_RETURN(CompiledRule compiled_rule, Compile(rule));
    compiled.push_back(std::move(compiled_rule));
  }
  MatchContext context(pcre2_match_context_create(nullptr));
  if (context == nullptr)
    return Error(ResourceExhausted("pre_tokenizer: no memory for PCRE2's match context"));
  pcre2_set_match_limit(context.get(), kMatchLimit);
  return std::make_unique<RegexPreTokenizer>(std::move(compiled), std::move(context));
}

}  // namespace dsv4::tokenizer
