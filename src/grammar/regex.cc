#include "grammar/regex.h"

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

}  // namespace dsv4::grammar
