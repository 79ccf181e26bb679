// Byte expressions: sequences, alternatives, repetitions and their sizes.
#include "grammar/regex.h"

#include <algorithm>
#include <set>
#include <utility>

namespace dsv4::grammar {
namespace {

// Lengths that are larger are as good as this one.
constexpr int64_t kLongest = 1 << 30;

int Sum(int a, int b) { return static_cast<int>(std::min(int64_t{a} + b, kLongest)); }
int Product(int a, int b) { return static_cast<int>(std::min(int64_t{a} * b, kLongest)); }
bool IsEndless(const Lengths& lengths) { return lengths.max == kUnbounded; }

void AddSequence(const Regex& regex, std::vector<Regex>& parts) {
  const bool is_group = regex->kind != RegexNode::Kind::kBytes && regex->parts.size() == 1 &&
                        (regex->kind != RegexNode::Kind::kRepeat || (regex->min == 1 && regex->max == 1));
  if (regex->character || (regex->kind != RegexNode::Kind::kConcat && !is_group))
    return parts.push_back(regex);
  for (const Regex& part : regex->parts) AddSequence(part, parts);
}

// Nodes are shared: each is looked at once.
void AddCharacters(const RegexNode& regex, std::vector<Regex>& characters, std::set<const RegexNode*>& seen) {
  for (const Regex& part : regex.parts) {
    if (!seen.insert(part.get()).second) continue;
    if (part->character)
      characters.push_back(part);
    else
      AddCharacters(*part, characters, seen);
  }
}

// The parts of a sequence one of which is not empty: that one is the first of these.
Regex NonEmptyConcat(const std::vector<Regex>& parts) {
  std::vector<Regex> options;
  for (size_t i = 0; i < parts.size(); ++i) {
    std::vector<Regex> rest = {NonEmpty(parts[i])};
    rest.insert(rest.end(), parts.begin() + static_cast<ptrdiff_t>(i) + 1, parts.end());
    options.push_back(Concat(std::move(rest)));
    if (!MayBeEmpty(*parts[i])) break;
  }
  return Either(std::move(options));
}

}  // namespace

Regex OneOf(const ByteSet& bytes) {
  return std::make_shared<RegexNode>(RegexNode{.kind = RegexNode::Kind::kBytes, .bytes = bytes});
}

Regex ByteRange(int first, int last) {
  ByteSet bytes;
  for (int byte = first; byte <= last; ++byte) bytes.set(static_cast<size_t>(byte));
  return OneOf(bytes);
}

Regex Literal(std::string_view text) {
  std::vector<Regex> parts;
  for (const char c : text) parts.push_back(ByteRange(static_cast<uint8_t>(c), static_cast<uint8_t>(c)));
  return Concat(std::move(parts));
}

Regex Concat(std::vector<Regex> parts) {
  return std::make_shared<RegexNode>(
      RegexNode{.kind = RegexNode::Kind::kConcat, .bytes = {}, .parts = std::move(parts)});
}

Regex Either(std::vector<Regex> parts) {
  return std::make_shared<RegexNode>(
      RegexNode{.kind = RegexNode::Kind::kEither, .bytes = {}, .parts = std::move(parts)});
}

Regex Repeat(Regex part, int min, int max) {
  return std::make_shared<RegexNode>(RegexNode{
      .kind = RegexNode::Kind::kRepeat, .bytes = {}, .parts = {std::move(part)}, .min = min, .max = max});
}

Regex Character(Regex part) {
  RegexNode node = *part;
  node.character = true;
  return std::make_shared<const RegexNode>(std::move(node));
}

double NumStates(const RegexNode& regex) {
  double sum = 0;
  for (const Regex& part : regex.parts) sum += NumStates(*part);
  const int copies = regex.max == kUnbounded ? regex.min + 1 : regex.max;
  return 1 + sum * (regex.kind == RegexNode::Kind::kRepeat ? std::max(1, copies) : 1);
}

bool MayBeEmpty(const RegexNode& regex) {
  const auto inner = [](const Regex& part) { return MayBeEmpty(*part); };
  switch (regex.kind) {
    case RegexNode::Kind::kBytes:
      return false;
    case RegexNode::Kind::kConcat:
      return std::all_of(regex.parts.begin(), regex.parts.end(), inner);
    case RegexNode::Kind::kEither:
      return std::any_of(regex.parts.begin(), regex.parts.end(), inner);
    case RegexNode::Kind::kRepeat:
      return regex.min == 0 || inner(regex.parts[0]);
  }
  return false;
}

Regex NonEmpty(const Regex& regex) {
  if (!MayBeEmpty(*regex)) return regex;
  switch (regex->kind) {
    case RegexNode::Kind::kBytes:
      return regex;
    case RegexNode::Kind::kConcat:
      return NonEmptyConcat(regex->parts);
    case RegexNode::Kind::kEither: {
      std::vector<Regex> options;
      for (const Regex& part : regex->parts) options.push_back(NonEmpty(part));
      return Either(std::move(options));
    }
    case RegexNode::Kind::kRepeat:
      if (regex->max == 0) return Either({});
      return Concat(
          {NonEmpty(regex->parts[0]), Repeat(regex->parts[0], std::max(0, regex->min - 1),
                                             regex->max == kUnbounded ? kUnbounded : regex->max - 1)});
  }
  return regex;
}

bool IsLarge(const RegexNode& regex) {
  return regex.kind == RegexNode::Kind::kRepeat && std::max(regex.min, regex.max) >= kLargeCount;
}

bool HasLargeCount(const RegexNode& regex) {
  return IsLarge(regex) || std::any_of(regex.parts.begin(), regex.parts.end(),
                                       [](const Regex& part) { return HasLargeCount(*part); });
}

std::vector<Regex> SequenceOf(const Regex& regex) {
  std::vector<Regex> parts;
  AddSequence(regex, parts);
  return parts;
}

std::optional<Lengths> LengthsOf(const RegexNode& regex) {
  if (regex.character) return Lengths{1, 1};
  if (regex.kind == RegexNode::Kind::kBytes) return std::nullopt;
  const bool either = regex.kind == RegexNode::Kind::kEither;
  std::optional<Lengths> all;
  for (const Regex& part : regex.parts) {
    const std::optional<Lengths> one = LengthsOf(*part);
    if (!one) return std::nullopt;
    if (!all)
      all = one;
    else if (either)
      all = {std::min(all->min, one->min),
             IsEndless(*all) || IsEndless(*one) ? kUnbounded : std::max(all->max, one->max)};
    else
      all = {Sum(all->min, one->min),
             IsEndless(*all) || IsEndless(*one) ? kUnbounded : Sum(all->max, one->max)};
  }
  if (!all) return either ? std::nullopt : std::optional(Lengths{});
  if (regex.kind != RegexNode::Kind::kRepeat) return all;
  const bool no_end = all->max != 0 && regex.max != 0 && (regex.max == kUnbounded || IsEndless(*all));
  return Lengths{Product(all->min, regex.min), no_end ? kUnbounded : Product(all->max, regex.max)};
}

// A text of `endless` and of length l has (l - others) / unit repetitions, so that a bound of one is a bound of the other.
std::optional<SizedText> AsSizedText(const std::vector<Regex>& sequence, int least) {
  const auto is_large = [&](const Regex& part) {
    return part->kind == RegexNode::Kind::kRepeat && std::max(part->min, part->max) >= least;
  };
  const auto found = std::find_if(sequence.begin(), sequence.end(), is_large);
  if (found == sequence.end() || std::any_of(found + 1, sequence.end(), is_large)) return std::nullopt;
  const RegexNode& repeat = **found;
  int others = 0;
  for (auto part = sequence.begin(); part != sequence.end(); ++part) {
    const std::optional<Lengths> lengths = LengthsOf(part == found ? *repeat.parts[0] : **part);
    if (!lengths || lengths->min != lengths->max || HasLargeCount(part == found ? *repeat.parts[0] : **part))
      return std::nullopt;
    if (part != found) others = Sum(others, lengths->min);
  }
  const int unit = LengthsOf(*repeat.parts[0])->min;
  if (unit == 0) return std::nullopt;
  SizedText sized;
  sized.lengths.min = Sum(others, Product(unit, repeat.min));
  sized.lengths.max = repeat.max == kUnbounded ? kUnbounded : Sum(others, Product(unit, repeat.max));
  std::vector<Regex> parts = sequence;
  parts[static_cast<size_t>(found - sequence.begin())] = Repeat(repeat.parts[0], 0, kUnbounded);
  sized.endless = Concat(std::move(parts));
  return sized;
}

std::vector<Regex> CharactersOf(const RegexNode& regex) {
  std::vector<Regex> characters;
  std::set<const RegexNode*> seen;
  AddCharacters(regex, characters, seen);
  return characters;
}

}  // namespace dsv4::grammar
