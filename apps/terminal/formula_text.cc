// Reader of TeX formulas and writer of their Unicode text: symbols, scripts, fractions, roots, accents and matrices on one line.
#include "apps/terminal/formula_text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <span>
#include <utility>
#include <vector>

namespace dsv4::apps {
namespace {

constexpr size_t kLongest = 4000;
constexpr int kDeepest = 32;

enum class Kind : unsigned char {
  kAtom,
  kRoot,
  kFraction,  // Binds less than a product: gets parentheses in one.
  kSign,      // + and -: an operator, or in front of an operand a part of it.
  kOperator,
  kRelation,
  kWord,  // "sin", "∑": a blank parts it from its operand.
  kOpen,
  kClose,
  kComma,
  kBlank,
};

struct Piece {
  std::string text;
  Kind kind = Kind::kAtom;
};
using Pieces = std::vector<Piece>;

struct Symbol {
  std::string_view name;
  std::string_view text;
};

struct Symbols {
  Kind kind = Kind::kAtom;
  std::string_view pairs;  // Commands and their characters.
};

constexpr std::array kSymbols = {
    Symbols{
        Kind::kAtom,
        "alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι kappa "
        "κ "
        "lambda λ mu μ nu ν xi ξ pi π varpi ϖ rho ρ varrho ϱ sigma σ varsigma ς tau τ upsilon υ phi ϕ varphi "
        "φ "
        "chi χ psi ψ omega ω Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π Sigma Σ Upsilon Υ Phi Φ Psi Ψ Omega "
        "Ω "
        "infty ∞ partial ∂ nabla ∇ hbar ℏ ell ℓ Re ℜ Im ℑ aleph ℵ emptyset ∅ varnothing ∅ forall ∀ exists ∃ "
        "nexists ∄ neg ¬ lnot ¬ angle ∠ triangle △ prime ′ dagger † degree ° dots … ldots … cdots ⋯ vdots ⋮ "
        "ddots ⋱ top ⊤ bot ⊥ checkmark ✓ square □ blacksquare ■ % % $ $ # # & & _ _ | ‖ Vert ‖ vert | "},
    Symbols{Kind::kSign, "pm ± mp ∓ "},
    Symbols{
        Kind::kOperator,
        "times × div ÷ cdot · ast ∗ star ⋆ circ ∘ bullet • cap ∩ cup ∪ setminus ∖ wedge ∧ land ∧ vee ∨ lor ∨ "
        "oplus ⊕ ominus ⊖ otimes ⊗ odot ⊙ bmod mod "},
    Symbols{Kind::kRelation,
            "le ≤ leq ≤ leqslant ≤ ge ≥ geq ≥ geqslant ≥ ne ≠ neq ≠ lt < gt > equiv ≡ approx ≈ sim ∼ simeq ≃ "
            "cong ≅ "
            "propto ∝ ll ≪ gg ≫ in ∈ notin ∉ ni ∋ subset ⊂ supset ⊃ subseteq ⊆ supseteq ⊇ to → rightarrow → "
            "longrightarrow ⟶ leftarrow ← gets ← leftrightarrow ↔ Rightarrow ⇒ Leftarrow ⇐ Leftrightarrow ⇔ "
            "iff ⇔ "
            "implies ⇒ mapsto ↦ uparrow ↑ downarrow ↓ perp ⊥ parallel ∥ mid ∣ vdash ⊢ models ⊨ coloneqq ≔ "
            "therefore ∴ because ∵ "},
    Symbols{
        Kind::kWord,
        "sum ∑ prod ∏ int ∫ iint ∬ iiint ∭ oint ∮ bigcup ⋃ bigcap ⋂ sin sin cos cos tan tan cot cot sec sec "
        "csc csc arcsin arcsin arccos arccos arctan arctan sinh sinh cosh cosh tanh tanh log log ln ln lg lg "
        "exp exp lim lim limsup limsup liminf liminf max max min min sup sup inf inf det det dim dim ker ker "
        "gcd gcd arg arg deg deg hom hom Pr Pr "},
    Symbols{Kind::kOpen, "{ { langle ⟨ lceil ⌈ lfloor ⌊ lvert | lVert ‖ "},
    Symbols{Kind::kClose, "} } rangle ⟩ rceil ⌉ rfloor ⌋ rvert | rVert ‖ "},
};
constexpr std::array<std::string_view, 6> kBlanks = {",", ":", ";", " ", "quad", "qquad"};
// Sizes and places, which a line of text does not have.
constexpr std::array<std::string_view, 22> kSilent = {
    "left",      "right",  "middle",   "big",   "Big",      "bigg",  "Bigg",  "bigl",
    "bigr",      "Bigl",   "Bigr",     "biggl", "biggr",    "Biggl", "Biggr", "displaystyle",
    "textstyle", "limits", "nolimits", "!",     "nonumber", "notag"};
constexpr std::array<std::string_view, 5> kFractions = {"frac", "dfrac", "tfrac", "cfrac", "sfrac"};
constexpr std::array<std::string_view, 6> kTexts = {"text", "textrm", "textbf", "textit", "textsf", "mbox"};
constexpr std::array<std::string_view, 4> kUpright = {"mathrm", "mathit", "mathsf", "mathtt"};
constexpr std::array<std::string_view, 3> kBold = {"mathbf", "boldsymbol", "bm"};
// Marks that combine with the character in front of them; of a whole text, only the last two.
constexpr std::array kAccents = {Symbol{"hat", "\u0302"},      Symbol{"widehat", "\u0302"},
                                 Symbol{"bar", "\u0304"},      Symbol{"vec", "\u20d7"},
                                 Symbol{"dot", "\u0307"},      Symbol{"ddot", "\u0308"},
                                 Symbol{"tilde", "\u0303"},    Symbol{"widetilde", "\u0303"},
                                 Symbol{"overline", "\u0305"}, Symbol{"underline", "\u0332"}};
constexpr std::array<std::string_view, 9> kAligned = {
    "align", "align*", "aligned", "gather", "gather*", "gathered", "equation", "equation*", "split"};
constexpr std::array kMatrices = {
    Symbol{"matrix", "()"},  Symbol{"pmatrix", "()"}, Symbol{"bmatrix", "[]"},    Symbol{"Bmatrix", "{}"},
    Symbol{"vmatrix", "||"}, Symbol{"cases", "{}"},   Symbol{"smallmatrix", "()"}};

constexpr std::string_view kRaisable = "0123456789+-=()abcdefghijklmnoprstuvwxyzABDEGHIJKLMNOPRTUVW";
constexpr std::u32string_view kRaised = U"⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻᴬᴮᴰᴱᴳᴴᴵᴶᴷᴸᴹᴺᴼᴾᴿᵀᵁⱽᵂ";
constexpr std::string_view kLowerable = "0123456789+-=()aehijklmnoprstuvx";
constexpr std::u32string_view kLowered = U"₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ";
static_assert(kRaisable.size() == kRaised.size() && kLowerable.size() == kLowered.size());

bool Has(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

const Symbol* Find(std::span<const Symbol> symbols, std::string_view name) {
  const auto found = std::ranges::find(symbols, name, &Symbol::name);
  return found == symbols.end() ? nullptr : &*found;
}

std::optional<Piece> SymbolOf(std::string_view name) {
  if (Has(kBlanks, name)) return Piece{"", Kind::kBlank};
  for (const Symbols& symbols : kSymbols) {
    std::string_view rest = symbols.pairs;
    while (!rest.empty()) {
      const size_t middle = rest.find(' ');
      const size_t end = rest.find(' ', middle + 1);
      if (rest.substr(0, middle) == name)
        return Piece{std::string(rest.substr(middle + 1, end - middle - 1)), symbols.kind};
      rest.remove_prefix(end + 1);
    }
  }
  return std::nullopt;
}

std::string Utf8(char32_t point) {
  if (point < 0x80) return {static_cast<char>(point)};
  const auto tail = [](char32_t bits) { return static_cast<char>(0x80 | (bits & 0x3f)); };
  if (point < 0x800) return {static_cast<char>(0xc0 | (point >> 6)), tail(point)};
  if (point < 0x10000) return {static_cast<char>(0xe0 | (point >> 12)), tail(point >> 6), tail(point)};
  return {static_cast<char>(0xf0 | (point >> 18)), tail(point >> 12), tail(point >> 6), tail(point)};
}

size_t CharacterLength(std::string_view text) {
  size_t length = 1;
  while (length < text.size() && (static_cast<unsigned char>(text[length]) & 0xc0) == 0x80) ++length;
  return length;
}

// Letters of an alphabet of mathematics; empty where it lacks one.
std::string Styled(std::string_view text, char32_t upper, char32_t lower, char32_t digit,
                   std::u32string_view holes) {
  std::string out;
  for (const char c : text) {
    char32_t point = 0;
    if (c >= 'A' && c <= 'Z') point = upper + static_cast<char32_t>(c - 'A');
    if (c >= 'a' && c <= 'z' && lower != 0) point = lower + static_cast<char32_t>(c - 'a');
    if (c >= '0' && c <= '9' && digit != 0) point = digit + static_cast<char32_t>(c - '0');
    // Pairs: the letter, and where it stands instead.
    for (size_t i = 0; i + 1 < holes.size(); i += 2) {
      if (holes[i] == static_cast<char32_t>(static_cast<unsigned char>(c))) point = holes[i + 1];
    }
    if (point == 0) return {};
    out += Utf8(point);
  }
  return out;
}

bool IsAscii(std::string_view text) {
  return text.empty() || static_cast<unsigned char>(text.front()) < 0x80;
}

bool Joins(Kind kind) {
  return kind == Kind::kAtom || kind == Kind::kFraction || kind == Kind::kRoot || kind == Kind::kWord;
}

// `tight`: a script, which has no blanks.
std::string Join(const Pieces& pieces, bool tight) {
  std::string out;
  Kind before = Kind::kOpen;
  std::string_view last;
  bool blank = false;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    if (piece.kind == Kind::kBlank) {
      blank = !out.empty();
      continue;
    }
    size_t next = i + 1;
    while (next < pieces.size() && pieces[next].kind == Kind::kBlank) ++next;
    const bool operand_before = Joins(before) || before == Kind::kClose;
    const bool sign = piece.kind == Kind::kSign && !operand_before;
    const bool spaced = (piece.kind == Kind::kSign && !sign) || piece.kind == Kind::kOperator ||
                        piece.kind == Kind::kRelation;
    std::string text = piece.text;
    const bool operand_behind =
        next < pieces.size() && (Joins(pieces[next].kind) || pieces[next].kind == Kind::kOpen);
    const bool factorial = next < pieces.size() && pieces[next].text == "!";
    const bool fraction = piece.kind == Kind::kFraction;
    if (fraction && (operand_before || operand_behind || factorial || last == "÷")) text = "(" + text + ")";
    if (piece.kind == Kind::kRoot && factorial) text = "(" + text + ")";
    if (piece.kind == Kind::kRoot && operand_behind) {  // "√(2)x": of one operand it has no parentheses.
      const size_t behind = text.find("\xe2\x88") + 3;
      if (text[behind] != '(') text = text.substr(0, behind) + "(" + text.substr(behind) + ")";
    }
    // "sin(x)", but "∑ₙ (n + 1)" and "lim_(n→0) (n)".
    const bool apart = piece.kind == Kind::kOpen && (out.ends_with(')') || !IsAscii(last));
    const bool word = (piece.kind == Kind::kWord && operand_before) ||
                      (before == Kind::kWord && (Joins(piece.kind) || apart));
    if (!tight && !out.empty() && !out.ends_with(' ') && (spaced || word || blank)) out += ' ';
    if (tight && word) out += ' ';
    out += text;
    if (!tight && (spaced || piece.kind == Kind::kComma)) out += ' ';
    last = piece.text;
    before = sign ? Kind::kOpen : spaced ? Kind::kOperator : piece.kind;
    blank = false;
  }
  while (out.ends_with(' ')) out.pop_back();
  return out;
}

// Whether a product with it needs parentheses.
bool IsSum(const Pieces& pieces) {
  int inside = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Kind kind = pieces[i].kind;
    inside += kind == Kind::kOpen ? 1 : kind == Kind::kClose && inside > 0 ? -1 : 0;
    if (inside > 0) continue;
    if (kind == Kind::kRelation || kind == Kind::kFraction || kind == Kind::kComma) return true;
    if ((kind == Kind::kSign || kind == Kind::kOperator) && i > 0) return true;
  }
  return false;
}

bool IsOne(const Pieces& pieces) {
  const auto digit = [](const Piece& p) {
    return p.text.size() == 1 && (std::isdigit(static_cast<unsigned char>(p.text[0])) != 0 || p.text == ".");
  };
  const bool differential = pieces.size() == 2 && (pieces[0].text == "d" || pieces[0].text == "∂");
  const bool single = pieces.size() == 1 && (pieces[0].kind == Kind::kAtom || pieces[0].kind == Kind::kRoot);
  return single || std::ranges::all_of(pieces, digit) || differential;
}

class Reader {
 public:
  explicit Reader(std::string_view tex) : tex_(tex) {}

  std::optional<std::string> Whole() {
    std::string out;
    do {
      Pieces row;
      if (!List(row, /*aligned=*/true)) return std::nullopt;
      if (!out.empty()) out += '\n';
      out += Join(row, false);
    } while (TakeRowEnd());
    if (at_ < tex_.size() || out.empty()) return std::nullopt;
    return out;
  }

 private:
  bool Take(std::string_view text) {
    if (!tex_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  bool TakeRowEnd() {
    if (!Take("\\\\")) return false;
    if (at_ < tex_.size() && tex_[at_] == '[') at_ = std::min(tex_.find(']', at_), tex_.size() - 1) + 1;
    return true;
  }
  bool IsDigit(size_t at) const {
    return at < tex_.size() && std::isdigit(static_cast<unsigned char>(tex_[at])) != 0;
  }
  void SkipBlanks() {
    while (at_ < tex_.size() && std::isspace(static_cast<unsigned char>(tex_[at_])) != 0) ++at_;
  }
  // "{name}", as it is.
  std::optional<std::string_view> Verbatim() {
    SkipBlanks();
    const size_t end = tex_.find('}', at_);
    if (!Take("{") || end == std::string_view::npos) return std::nullopt;
    const std::string_view text = tex_.substr(at_, end - at_);
    at_ = end + 1;
    if (text.find_first_of("\\{$") != std::string_view::npos) return std::nullopt;
    return text;
  }

  // Up to what closes it, which stays: "}", "]" of a root, "\\", "&", "\end", the end. `aligned`: "&" is nothing.
  bool List(Pieces& out, bool aligned = false, char close = '}') {
    if (++depth_ > kDeepest) return false;
    for (;;) {
      SkipBlanks();
      const std::string_view rest = tex_.substr(at_);
      if (rest.empty() || rest.front() == close || rest.front() == '}' || rest.starts_with("\\\\") ||
          rest.starts_with("\\end{"))
        break;
      if (rest.front() == '&') {
        if (!aligned || !aligned_) break;
        ++at_;
        continue;
      }
      if (!One(out)) return false;
    }
    --depth_;
    return true;
  }

  // One operand of a command: a group, a command or a character.
  bool Argument(Pieces& out) {
    SkipBlanks();
    if (Take("{")) return List(out) && Take("}");
    return at_ < tex_.size() && Atom(out);
  }

  // An atom and its scripts.
  bool One(Pieces& out) {
    size_t begin = out.size();
    if (!Atom(out)) return false;
    if (out.size() == begin && begin > 0) --begin;  // "\\sum\\limits_n"
    for (;;) {
      SkipBlanks();
      const char c = at_ < tex_.size() ? tex_[at_] : ' ';
      if (c != '\'' && c != '^' && c != '_') return true;
      if (out.size() == begin) return false;
      ++at_;
      // A group has its script as a whole.
      if (out.size() > begin + 1 || out.back().kind == Kind::kFraction || out.back().kind == Kind::kRoot) {
        const Pieces group(out.begin() + static_cast<ptrdiff_t>(begin), out.end());
        out.resize(begin);
        out.push_back({"(" + Join(group, false) + ")", Kind::kAtom});
      }
      if (c == '\'') {
        out.back().text += "′";
        continue;
      }
      Pieces script;
      if (!Argument(script)) return false;
      out.back().text += Script(Join(script, true), c == '^');
    }
  }

  static std::string Script(const std::string& text, bool raised) {
    if (raised && text == "∘") return "°";
    if (raised && text.starts_with("′")) return text;
    const std::string_view from = raised ? kRaisable : kLowerable;
    const std::u32string_view to = raised ? kRaised : kLowered;
    std::string out;
    for (const char c : text) {
      const size_t found = from.find(c);
      if (found == std::string_view::npos) {
        const bool symbol =
            CharacterLength(text) == text.size() && std::isalnum(static_cast<unsigned char>(text[0])) == 0;
        return (raised ? "^" : "_") + (symbol ? text : "(" + text + ")");
      }
      out += Utf8(to[found]);
    }
    return out;
  }

  bool Atom(Pieces& out) {
    const char c = tex_[at_];
    if (c == '\\') return Command(out);
    if (c == '{') {
      ++at_;
      return List(out) && Take("}");
    }
    if (static_cast<unsigned char>(c) < 0x20 || std::string_view("}^_&%#$").find(c) != std::string_view::npos)
      return false;
    const size_t length = CharacterLength(tex_.substr(at_));
    Kind kind = Kind::kAtom;
    if (c == '+' || c == '-') kind = Kind::kSign;
    if (c == '*') kind = Kind::kOperator;
    if (c == '=' || c == '<' || c == '>' || c == ':') kind = Kind::kRelation;
    if (c == '(' || c == '[') kind = Kind::kOpen;
    if (c == ')' || c == ']' || c == '!') kind = Kind::kClose;
    if (c == ',' || c == ';') kind = Kind::kComma;
    if (c == ',' && IsDigit(at_ - 1) && IsDigit(at_ + 1)) kind = Kind::kAtom;  // 1,000
    if (c == '~') kind = Kind::kBlank;
    out.push_back({std::string(c == '~' ? std::string_view() : tex_.substr(at_, length)), kind});
    at_ += length;
    return true;
  }

  std::string_view CommandName() {
    ++at_;
    size_t end = at_;
    while (end < tex_.size() && std::isalpha(static_cast<unsigned char>(tex_[end])) != 0) ++end;
    if (end == at_ && end < tex_.size()) ++end;
    const std::string_view name = tex_.substr(at_, end - at_);
    at_ = end;
    return name;
  }

  bool Command(Pieces& out) {
    const std::string_view name = CommandName();
    if (std::optional<Piece> symbol = SymbolOf(name)) {
      out.push_back(std::move(*symbol));
      return true;
    }
    if (Has(kSilent, name)) {
      if (name == "left" || name == "right") Take(".");
      return true;
    }
    if (Has(kTexts, name)) {
      const auto text = Verbatim();
      if (!text) return false;
      if (text->starts_with(' ')) out.push_back({"", Kind::kBlank});
      if (text->find_first_not_of(' ') == std::string_view::npos) return true;
      const size_t begin = text->find_first_not_of(' ');
      out.push_back({std::string(text->substr(begin, text->find_last_not_of(' ') + 1 - begin)), Kind::kAtom});
      if (text->ends_with(' ')) out.push_back({"", Kind::kBlank});
      return true;
    }
    if (Has(kFractions, name)) return Fraction(out);
    if (name == "sqrt") return Root(out);
    if (name == "begin") return Environment(out);
    return WithArgument(name, out);
  }

  bool WithArgument(std::string_view name, Pieces& out) {
    const Symbol* accent = Find(kAccents, name);
    const bool known = accent != nullptr || Has(kUpright, name) || Has(kBold, name) || name == "mathbb" ||
                       name == "mathcal" || name == "operatorname" || name == "boxed" || name == "pmod";
    Pieces inner;
    if (!known || !Argument(inner)) return false;
    const std::string text = Join(inner, name == "mathrm" || name == "operatorname");
    if (text.empty()) return false;
    Piece piece = {text, Kind::kAtom};
    if (accent != nullptr) {
      const bool line = name == "overline" || name == "underline";
      if (!line && CharacterLength(text) != text.size()) return false;
      piece.text.clear();
      for (size_t at = 0; at < text.size();) {
        const size_t length = CharacterLength(std::string_view(text).substr(at));
        piece.text += text.substr(at, length) + std::string(accent->text);
        at += length;
      }
    } else if (Has(kBold, name)) {
      piece.text = Styled(text, 0x1d400, 0x1d41a, 0x1d7ce, {});
    } else if (name == "mathbb") {
      piece.text = Styled(text, 0x1d538, 0x1d552, 0x1d7d8, U"CℂHℍNℕPℙQℚRℝZℤ");
    } else if (name == "mathcal") {
      piece.text = Styled(text, 0x1d49c, 0, 0, U"BℬEℰFℱHℋIℐLℒMℳRℛ");
    } else if (name == "operatorname") {
      piece.kind = Kind::kWord;
    } else if (name == "boxed") {
      piece.text = "[ " + text + " ]";
    } else if (name == "pmod") {
      out.push_back({"", Kind::kBlank});
      piece.text = "(mod " + text + ")";
    }
    if (piece.text.empty()) return false;
    out.push_back(std::move(piece));
    return true;
  }

  bool Fraction(Pieces& out) {
    Pieces above, below;
    if (!Argument(above) || !Argument(below) || above.empty() || below.empty()) return false;
    const auto wrapped = [](const Pieces& pieces, bool wrap) {
      return wrap ? "(" + Join(pieces, false) + ")" : Join(pieces, false);
    };
    out.push_back({wrapped(above, IsSum(above)) + "/" + wrapped(below, !IsOne(below)), Kind::kFraction});
    return true;
  }

  bool Root(Pieces& out) {
    Pieces index, inner;
    SkipBlanks();
    if (Take("[") && !(List(index, false, ']') && Take("]"))) return false;
    if (!Argument(inner) || inner.empty()) return false;
    const std::string order = Join(index, true);
    std::string sign = "√";
    if (order == "3") sign = "∛";
    if (order == "4") sign = "∜";
    if (sign == "√" && !order.empty() && order != "2") {
      const std::string raised = Script(order, true);
      if (raised.starts_with('^')) return false;
      sign = raised + sign;
    }
    out.push_back({sign + (IsOne(inner) ? Join(inner, false) : "(" + Join(inner, false) + ")"), Kind::kRoot});
    return true;
  }

  bool Environment(Pieces& out) {
    const auto name = Verbatim();
    if (!name) return false;
    if (Has(kAligned, *name)) {
      // Its rows are those of the formula, so it must be all of it.
      const std::string close = "\\end{" + std::string(*name) + "}";
      const std::string_view rest = tex_.substr(at_);
      const size_t end = rest.find(close);
      if (depth_ > 1 || !out.empty() || end == std::string_view::npos ||
          rest.find_first_not_of(" \t\n", end + close.size()) != std::string_view::npos)
        return false;
      tex_ = tex_.substr(0, at_ + end);
      aligned_ = true;
      return true;
    }
    const Symbol* matrix = Find(kMatrices, *name);
    if (matrix == nullptr) return false;
    std::string text(1, matrix->text[0]);
    for (;;) {
      Pieces cell;
      if (!List(cell)) return false;
      text += Join(cell, false);
      if (Take("&")) {
        text += ", ";
      } else if (TakeRowEnd()) {
        SkipBlanks();
        if (!tex_.substr(at_).starts_with("\\end{")) text += "; ";
      } else {
        break;
      }
    }
    if (!Take("\\end{" + std::string(*name) + "}")) return false;
    out.push_back({text + matrix->text[1], Kind::kAtom});
    return true;
  }

  std::string_view tex_;
  size_t at_ = 0;
  int depth_ = 0;
  bool aligned_ = false;
};

}  // namespace

std::optional<std::string> FormulaText(std::string_view tex) {
  if (tex.size() > kLongest) return std::nullopt;
  return Reader(tex).Whole();
}

}  // namespace dsv4::apps
