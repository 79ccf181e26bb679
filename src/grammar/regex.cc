// Byte expressions: sequences, alternatives, repetitions and their sizes.
#include "grammar/regex.h"

#include <algorithm>
#include <utility>

namespace dsv4::grammar {

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

}  // namespace dsv4::grammar
