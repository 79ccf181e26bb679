// Automata against what minimising them must keep.
#include "grammar/dfa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "grammar/partition.h"

namespace dsv4::grammar {
namespace {

// By definition: pairs of states are told apart until no pair more is.
size_t NumClassesByPairs(const Dfa& dfa, const std::string& bytes) {
  const size_t count = dfa.num_states();
  std::vector<std::vector<bool>> apart(count, std::vector<bool>(count));
  const auto next = [&](size_t state, char byte) {
    return dfa.Next(static_cast<uint32_t>(state), static_cast<uint8_t>(byte));
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t a = 0; a < count; ++a) {
      for (size_t b = 0; b < count; ++b) {
        if (apart[a][b]) continue;
        bool differ = dfa.IsAccepting(static_cast<uint32_t>(a)) != dfa.IsAccepting(static_cast<uint32_t>(b));
        for (const char byte : bytes) {
          const uint32_t to_a = next(a, byte);
          const uint32_t to_b = next(b, byte);
          differ = differ || (to_a == Dfa::kDead) != (to_b == Dfa::kDead) ||
                   (to_a != Dfa::kDead && apart[to_a][to_b]);
        }
        if (differ) apart[a][b] = changed = true;
      }
    }
  }
  size_t classes = 0;
  for (size_t a = 0; a < count; ++a) {
    bool is_first = true;
    for (size_t b = 0; b < a; ++b) is_first = is_first && apart[a][b];
    classes += is_first ? 1 : 0;
  }
  return classes;
}

Regex RandomRegex(std::mt19937& random, int depth) {
  const auto kind = random() % 6;
  if (depth == 0 || kind == 0) {
    const int first = 'a' + static_cast<int>(random() % 4);
    return ByteRange(first, first + static_cast<int>(random() % 2));
  }
  if (kind == 5) {
    const int min = static_cast<int>(random() % 3);
    return Repeat(RandomRegex(random, depth - 1), min,
                  random() % 2 == 0 ? kUnbounded : min + static_cast<int>(random() % 3));
  }
  std::vector<Regex> parts;
  for (auto left = random() % 3 + 1; left > 0; --left) parts.push_back(RandomRegex(random, depth - 1));
  return kind < 3 ? Concat(std::move(parts)) : Either(std::move(parts));
}

// All texts of at most `length` of the bytes that the automaton accepts.
void Collect(const Dfa& dfa, uint32_t state, const std::string& bytes, size_t length, std::string& text,
             std::set<std::string>& out) {
  if (dfa.IsAccepting(state)) out.insert(text);
  for (const char byte : bytes) {
    const uint32_t next = dfa.Next(state, static_cast<uint8_t>(byte));
    if (next == Dfa::kDead || text.size() == length) continue;
    text.push_back(byte);
    Collect(dfa, next, bytes, length, text, out);
    text.pop_back();
  }
}

// By definition: all texts of at most `length` bytes.
std::set<std::string> TextsOf(const RegexNode& regex, size_t length) {
  const auto joined = [&](const std::set<std::string>& a, const std::set<std::string>& b) {
    std::set<std::string> out;
    for (const std::string& first : a) {
      for (const std::string& second : b) {
        if (first.size() + second.size() <= length) out.insert(first + second);
      }
    }
    return out;
  };
  std::set<std::string> out;
  switch (regex.kind) {
    case RegexNode::Kind::kBytes:
      for (size_t byte = 0; byte < 256; ++byte) {
        if (regex.bytes[byte]) out.insert(std::string(1, static_cast<char>(byte)));
      }
      return out;
    case RegexNode::Kind::kConcat:
      out = {""};
      for (const Regex& part : regex.parts) out = joined(out, TextsOf(*part, length));
      return out;
    case RegexNode::Kind::kEither:
      for (const Regex& part : regex.parts) out.merge(TextsOf(*part, length));
      return out;
    case RegexNode::Kind::kRepeat: {
      const std::set<std::string> part = TextsOf(*regex.parts[0], length);
      std::set<std::string> now = {""};
      for (int i = 0; i < regex.min; ++i) now = joined(now, part);
      out = now;
      for (int i = regex.min;
           regex.max == kUnbounded ? i < regex.min + static_cast<int>(length) : i < regex.max; ++i) {
        now = joined(now, part);
        out.insert(now.begin(), now.end());
      }
      return out;
    }
  }
  return out;
}

TEST(Dfa, HasTheTextsOfItsExpressionAndNoStateTooMany) {
  constexpr size_t kLength = 4;
  const std::string bytes = "abcde";
  std::mt19937 random(3);
  size_t most_states = 0;
  for (int i = 0; i < 300; ++i) {
    const Regex regex = RandomRegex(random, 3);
    DfaLimits limits;
    const auto dfa = Dfa::Compile(regex, limits);
    ASSERT_TRUE(dfa);
    std::set<std::string> texts;
    std::string text;
    if (!dfa->IsEmpty()) Collect(*dfa, Dfa::kStart, bytes, kLength, text, texts);
    EXPECT_EQ(texts, TextsOf(*regex, kLength)) << i;
    if (dfa->num_states() > 60) continue;
    EXPECT_EQ(NumClassesByPairs(*dfa, bytes), dfa->num_states()) << i;
    most_states = std::max(most_states, dfa->num_states());
  }
  EXPECT_GT(most_states, 20U);
}

std::set<std::string> AllTexts(const Dfa& dfa, const std::string& bytes, size_t length) {
  std::set<std::string> texts;
  std::string text;
  if (!dfa.IsEmpty()) Collect(dfa, Dfa::kStart, bytes, length, text, texts);
  return texts;
}

// No state that a text leads to is a dead end.
void ExpectLive(const Dfa& dfa, const std::string& bytes, size_t length) {
  if (dfa.IsEmpty()) return;
  std::set<uint32_t> states = {Dfa::kStart};
  for (size_t i = 0; i < length; ++i) {
    std::set<uint32_t> next;
    for (const uint32_t state : states) {
      bool goes_on = false;
      for (const char byte : bytes) {
        const uint32_t to = dfa.Next(state, static_cast<uint8_t>(byte));
        goes_on = goes_on || to != Dfa::kDead;
        if (to != Dfa::kDead) next.insert(to);
      }
      EXPECT_EQ(goes_on, dfa.GoesOn(state));
      EXPECT_TRUE(goes_on || dfa.IsAccepting(state));
    }
    states = std::move(next);
  }
}

TEST(Dfa, OneThatCountsHasTheTextsOfTheStatesWrittenOut) {
  constexpr size_t kLength = 7;
  const std::string bytes = "abcdexy";
  std::mt19937 random(5);
  int num_counted = 0;
  int num_products = 0;
  for (int i = 0; i < 400; ++i) {
    const auto letter = [](char c) { return ByteRange(c, c); };
    const Regex before = random() % 2 == 0 ? Concat({}) : letter('x');
    const Regex behind = random() % 3 == 0 ? Concat({}) : random() % 2 == 0 ? letter('y') : Literal("xy");
    const Regex unit = random() % 2 == 0 ? RandomRegex(random, 1) : RandomRegex(random, 2);
    const int min = static_cast<int>(random() % 4);
    const int max = random() % 4 == 0 ? kUnbounded : min + static_cast<int>(random() % 4);
    DfaLimits limits;
    const Dfa one = *Dfa::Compile(unit, limits);
    auto counted =
        Dfa::Counted(*Dfa::Compile(before, limits), one, *Dfa::Compile(behind, limits), min, max, limits);
    if (!counted) continue;
    ASSERT_TRUE(*counted);
    const Dfa plain = *Dfa::Compile(Concat({before, Repeat(unit, min, max), behind}), limits);
    EXPECT_EQ(AllTexts(**counted, bytes, kLength), AllTexts(plain, bytes, kLength)) << i;
    ExpectLive(**counted, bytes, 10);
    ++num_counted;
    const Dfa other = *Dfa::Compile(Concat({Repeat(letter('x'), 0, 1), RandomRegex(random, 3),
                                            Repeat(OneOf(ByteSet().set('x').set('y')), 0, 2)}),
                                    limits);
    for (const bool subtract : {false, true}) {
      const auto product = [&](const Dfa& of) {
        return subtract ? *Dfa::Subtract(of, other, limits) : *Dfa::Intersect(of, other, limits);
      };
      const Dfa both = product(**counted);
      EXPECT_EQ(AllTexts(both, bytes, kLength), AllTexts(product(plain), bytes, kLength)) << i << subtract;
      ExpectLive(both, bytes, 10);
      num_products += both.IsEmpty() ? 0 : 1;
      // And once more, of what is a product already.
      const Dfa again = *Dfa::Subtract(both, *Dfa::Compile(RandomRegex(random, 2), limits), limits);
      ExpectLive(again, bytes, 10);
    }
  }
  EXPECT_GT(num_counted, 100);
  EXPECT_GT(num_products, 100);
}

TEST(Partition, SplitsWhatIsMarkedFromWhatIsNot) {
  Partition groups(6);
  std::vector<std::pair<uint32_t, uint32_t>> splits;
  const auto split = [&](std::vector<uint32_t> marks) {
    splits.clear();
    for (const uint32_t mark : marks) groups.Mark(mark);
    groups.SplitMarked([&](uint32_t kept, uint32_t made) { splits.emplace_back(kept, made); });
  };
  split({4, 1, 4});
  EXPECT_EQ(splits, (std::vector<std::pair<uint32_t, uint32_t>>{{0, 1}}));
  EXPECT_EQ(groups.group_of(1), groups.group_of(4));
  EXPECT_EQ(groups.size(1), 2U);
  split({1, 4});  // A whole group stays one.
  EXPECT_TRUE(splits.empty());
  split({4, 0, 5});
  EXPECT_EQ(splits.size(), 2U);
  EXPECT_NE(groups.group_of(1), groups.group_of(4));
  EXPECT_EQ(groups.group_of(0), groups.group_of(5));
  EXPECT_EQ(groups.group_of(2), groups.group_of(3));
  EXPECT_EQ(std::set<uint32_t>(groups.begin(groups.group_of(0)), groups.end(groups.group_of(0))),
            (std::set<uint32_t>{0, 5}));
}

}  // namespace
}  // namespace dsv4::grammar
