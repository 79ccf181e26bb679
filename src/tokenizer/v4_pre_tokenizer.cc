// The scanner for V4's three rules, character by character. V4SplitRules() below is the definition; the
// functions carry the alternative of the third rule that they stand for:
//   (a) one ASCII punctuation character, then ASCII letters
//   (b) at most one character that is not CR, LF, letter, punctuation or symbol, then letters and marks
//   (c) at most one blank, then punctuation and symbols, then CRs and LFs
//   (d) white space that ends in CRs and LFs     (e) white space not followed by something else     (f) white space
#include <memory>

#include "base/utf8.h"
#include "tokenizer/char_class.h"
#include "tokenizer/pre_tokenizer.h"

namespace dsv4::tokenizer {
namespace {

constexpr size_t kMaxNumbersPerPiece = 3;

// The ranges of the second rule.
bool IsCjk(uint32_t c) { return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF); }

bool IsAscii(char c) { return static_cast<uint8_t>(c) < 0x80; }
bool IsAsciiDigit(char c) { return c >= '0' && c <= '9'; }
bool IsAsciiLetter(char c) { return static_cast<uint8_t>((c | 0x20) - 'a') < 26; }

// Cuts one text. Positions are pointers; "the piece" is what the first two rules left over, [.., end).
class Scanner {
 public:
  explicit Scanner(const PieceSink& sink) : table_(CharClassTable::Get()), sink_(sink) {}

  // Rules one and two: runs of numbers in threes, runs of CJK, and what lies between; the latter two go on to
  // rule three. Numbers do not: no alternative of rule three can match in a piece of numbers alone.
  void Scan(std::string_view text) {
    const char* const end = text.data() + text.size();
    for (const char* p = text.data(); p < end;) {
      const char* run_end = p;
      switch (KindAt(p)) {
        case Kind::kNumber:
          for (size_t i = 0; i < kMaxNumbersPerPiece && run_end < end && KindAt(run_end) == Kind::kNumber;
               ++i) {
            run_end += LengthAt(run_end);
          }
          Emit(p, run_end);
          break;
        case Kind::kCjk:
          while (run_end < end && KindAt(run_end) == Kind::kCjk) run_end += LengthAt(run_end);
          ScanWords(p, run_end);
          break;
        case Kind::kText:
          while (run_end < end && KindAt(run_end) == Kind::kText) run_end += LengthAt(run_end);
          ScanWords(p, run_end);
          break;
      }
      p = run_end;
    }
  }

 private:
  enum class Kind { kText, kNumber, kCjk };

  struct Char {
    CharClass char_class;
    const char* next;
  };

  Char At(const char* p) const {
    if (IsAscii(*p)) return {table_.OfAscii(static_cast<uint8_t>(*p)), p + 1};
    const CodePoint c = DecodeUtf8(p);
    return {table_[c.value], p + c.num_bytes};
  }

  Kind KindAt(const char* p) const {
    if (IsAscii(*p)) return IsAsciiDigit(*p) ? Kind::kNumber : Kind::kText;
    const uint32_t c = DecodeUtf8(p).value;
    if (table_[c] == CharClass::kNumber) return Kind::kNumber;
    return IsCjk(c) ? Kind::kCjk : Kind::kText;
  }

  static size_t LengthAt(const char* p) { return IsAscii(*p) ? 1 : DecodeUtf8(p).num_bytes; }

  void Emit(const char* begin, const char* end) {
    if (begin < end) sink_({begin, static_cast<size_t>(end - begin)});
  }

  // Rule three: matches and the text between them.
  void ScanWords(const char* begin, const char* end) {
    const char* unmatched = begin;
    for (const char* p = begin; p < end;) {
      const char* const match_end = MatchWord(p, end);
      if (match_end == nullptr) {
        p += LengthAt(p);
        continue;
      }
      Emit(unmatched, p);
      Emit(p, match_end);
      p = unmatched = match_end;
    }
    Emit(unmatched, end);
  }

  // End of the match of rule three that starts at `p`; null when there is none.
  const char* MatchWord(const char* p, const char* end) const {
    const Char c = At(p);
    // Class that can follow a one-character prefix; kOther at the end of the piece, which starts no match.
    const CharClass next = c.next < end ? At(c.next).char_class : CharClass::kOther;
    switch (c.char_class) {
      case CharClass::kLetterOrMark:
        return RunEnd(p, end, CharClass::kLetterOrMark);  // (b) without the prefix
      case CharClass::kPunctOrSymbol:
        // All ASCII punctuation and symbols are in the list of (a).
        if (IsAscii(*p) && c.next < end && IsAsciiLetter(*c.next)) return AsciiLettersEnd(c.next, end);
        return PunctuationEnd(p, end);
      case CharClass::kNewline:
        return WhiteSpaceEnd(p, end);
      case CharClass::kSpace:
        if (next == CharClass::kLetterOrMark) return RunEnd(c.next, end, CharClass::kLetterOrMark);
        if (*p == ' ' && next == CharClass::kPunctOrSymbol) return PunctuationEnd(c.next, end);
        return WhiteSpaceEnd(p, end);
      case CharClass::kNumber:  // Rule one left none.
      case CharClass::kOther:
        return next == CharClass::kLetterOrMark ? RunEnd(c.next, end, CharClass::kLetterOrMark) : nullptr;
    }
    return nullptr;
  }

  const char* RunEnd(const char* p, const char* end, CharClass char_class) const {
    while (p < end) {
      const Char c = At(p);
      if (c.char_class != char_class) break;
      p = c.next;
    }
    return p;
  }

  // (a)
  static const char* AsciiLettersEnd(const char* p, const char* end) {
    while (p < end && IsAsciiLetter(*p)) ++p;
    return p;
  }

  // (c) behind the blank.
  const char* PunctuationEnd(const char* p, const char* end) const {
    return RunEnd(RunEnd(p, end, CharClass::kPunctOrSymbol), end, CharClass::kNewline);
  }

  // (d), (e), (f), tried in this order on the whole run of white space.
  const char* WhiteSpaceEnd(const char* p, const char* end) const {
    const char* last_newline_end = nullptr;
    const char* last_char = p;
    const char* run_end = p;
    while (run_end < end) {
      const Char c = At(run_end);
      if (c.char_class != CharClass::kSpace && c.char_class != CharClass::kNewline) break;
      if (c.char_class == CharClass::kNewline) last_newline_end = c.next;
      last_char = run_end;
      run_end = c.next;
    }
    if (last_newline_end != nullptr) return last_newline_end;
    // At the end of the piece nothing follows; elsewhere (e) gives its last character back, if it keeps one.
    if (run_end == end || last_char == p) return run_end;
    return last_char;
  }

  const CharClassTable& table_;
  const PieceSink& sink_;
};

class V4PreTokenizer final : public PreTokenizer {
 public:
  Status Split(std::string_view text, const PieceSink& sink) const override {
    Scanner(sink).Scan(text);
    return {};
  }
};

}  // namespace

const std::vector<SplitRule>& V4SplitRules() {
  static const std::vector<SplitRule> rules = {
      {.pattern = R"(\p{N}{1,3})"},
      {.pattern = "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+"},
      {.pattern = R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+)"
                  "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
                  "| ?[\\p{P}\\p{S}]+[\r\n]*"
                  R"(|\s*)"
                  "[\r\n]+"
                  R"(|\s+(?!\S)|\s+)"},
  };
  return rules;
}

std::unique_ptr<PreTokenizer> MakeV4PreTokenizer() { return std::make_unique<V4PreTokenizer>(); }

Result<std::unique_ptr<PreTokenizer>> MakePreTokenizer(const std::vector<SplitRule>& rules) {
  if (rules == V4SplitRules()) return MakeV4PreTokenizer();
  return MakeRegexPreTokenizer(rules);
}

}  // namespace dsv4::tokenizer
