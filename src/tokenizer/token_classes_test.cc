// Keys of texts, and classes of a small tokenizer. The release's vocabulary is in golden_test.cc.
#include "tokenizer/token_classes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tokenizer/testing.h"

namespace dsv4::tokenizer {
namespace {

using ::testing::HasSubstr;
using namespace std::string_literals;

TEST(ClassKey, CaseMarksAndCompatibilityFormsAreOne) {
  EXPECT_EQ(ClassKey("The"), "the");
  EXPECT_EQ(ClassKey("É"), "e");
  EXPECT_EQ(ClassKey("e\u0301"), "e");
  EXPECT_EQ(ClassKey("ﬁ"), "fi");
  EXPECT_EQ(ClassKey("Ⅳ"), "iv");
  EXPECT_EQ(ClassKey("Ａ１"), "a1");
  EXPECT_EQ(ClassKey("İ"), "i");
  // A vowel sign is a spacing mark (Mc), an enclosing circle one of Me.
  EXPECT_EQ(ClassKey("का"), "क");
  EXPECT_EQ(ClassKey("a\u20DD"), "a");
  // Decomposed Hangul stays decomposed.
  EXPECT_EQ(ClassKey("각"), "\u1100\u1161\u11A8");
  EXPECT_EQ(ClassKey("がん"), "かん");
}

// Every character by itself: a final sigma is an ordinary one.
TEST(ClassKey, LowerCaseKnowsNoFinalSigma) {
  EXPECT_EQ(ClassKey("ΟΔΟΣ"), "οδοσ");
  EXPECT_EQ(ClassKey("οδος"), "οδος");
  EXPECT_NE(ClassKey("ΟΔΟΣ"), ClassKey("οδος"));
}

TEST(ClassKey, RunsOfFourBlanksAreOneBlank) {
  EXPECT_EQ(ClassKey("a \t\r\n b"), "a b");
  EXPECT_EQ(ClassKey(" the "), "the");
  for (const std::string text : {" ", "\n", "\t\t", "\r\n \n"}) EXPECT_EQ(ClassKey(text), " ");
  // NFKC makes a blank of a no-break space.
  EXPECT_EQ(ClassKey("\u00A0"), " ");
  EXPECT_EQ(ClassKey("a\vb"), "a\vb");
}

TEST(ClassKey, WhiteSpaceIsTakenOffTheEnds) {
  EXPECT_EQ(ClassKey("\v x\u2028"), "x");
  EXPECT_EQ(ClassKey("\u0085x"), "x");
  // Python calls these four blank, Unicode does not.
  EXPECT_EQ(ClassKey("\x1Cx\x1F"), "\x1Cx\x1F");
}

TEST(ClassKey, TextOfWhichNothingIsLeftStaysAsItWas) {
  EXPECT_EQ(ClassKey(""), "");
  EXPECT_EQ(ClassKey("\u0301"), "\u0301");
  EXPECT_EQ(ClassKey("\v\f"), "\v\f");
  EXPECT_EQ(ClassKey("\u2028"), "\u2028");
  // Blanks beside another white character are no single blank.
  EXPECT_EQ(ClassKey(" \v "), " \v ");
  EXPECT_EQ(ClassKey("\0"s), "\0"s);
  EXPECT_EQ(ClassKey("A\0B"s), "a\0b"s);
}

class ToyClasses : public ::testing::Test {
 protected:
  // Ids 0 .. n - 1 are the tokens of `base` as the alphabet spells them, behind all single bytes; then those
  // of `added`.
  static Result<TokenClasses> Make(const std::vector<std::string>& base,
                                   const std::vector<std::string>& added, int num_missing = 0) {
    nlohmann::json file = testing::ToyFile();
    const size_t num_bytes = 256;
    auto& vocab = file["model"]["vocab"];
    file["model"]["merges"] = nlohmann::json::array();
    for (auto it = vocab.begin(); it != vocab.end();)
      it = it.value().get<size_t>() >= num_bytes ? vocab.erase(it) : std::next(it);
    int id = static_cast<int>(num_bytes);
    for (const std::string& token : base) vocab[token] = id++;
    file["added_tokens"] = nlohmann::json::array();
    for (const std::string& token : added) {
      file["added_tokens"].push_back(
          {{"id", id++}, {"content", token}, {"special", true}, {"normalized", false}});
    }
    return MakeTokenClasses(testing::ParseOrDie(file), id + num_missing);
  }
  // Classes of the tokens behind the single bytes.
  static std::vector<int32_t> Tail(const TokenClasses& classes) {
    return {classes.of_id.begin() + 256, classes.of_id.end()};
  }
};

TEST_F(ToyClasses, CountUpByFirstAppearance) {
  const auto classes = Make({"Ġthe", "THE", "thE", "other"}, {"The", "<x>"});
  ASSERT_TRUE(classes) << classes.error().ToString();
  EXPECT_EQ(classes->of_id[0], 0);
  const std::vector<int32_t> tail = Tail(*classes);
  EXPECT_EQ(tail[1], tail[0]);
  EXPECT_EQ(tail[2], tail[0]);
  EXPECT_EQ(tail[3], tail[0] + 1);
  EXPECT_EQ(tail[4], tail[0]);
  EXPECT_EQ(tail[5], tail[3] + 1);
  EXPECT_EQ(classes->count, tail[5] + 1);
}

// Parts of characters keep their spelling: two of them are never one class, whatever case the alphabet's
// letters have.
TEST_F(ToyClasses, PartsOfCharactersAreTheirSpelling) {
  const auto classes = Make({"Ãł", "ãł", "ï¿½", "ï¿½a", "ï¿½A"}, {});
  ASSERT_TRUE(classes) << classes.error().ToString();
  const std::vector<int32_t> tail = Tail(*classes);
  // C3 A0 is a whole character, E3 A0 is none.
  EXPECT_EQ(tail[0], classes->of_id[(7 * 'a') % 256]);
  EXPECT_NE(tail[1], tail[0]);
  // A U+FFFD that is written out counts as part of a character too.
  EXPECT_NE(tail[3], tail[4]);
}

// The decoder reads an added token of alphabet characters as bytes.
TEST_F(ToyClasses, AddedTokensOfTheAlphabetAreBytes) {
  const auto classes = Make({"ee", "ee|"}, {"Ġa", "éé", "éé｜"});
  ASSERT_TRUE(classes) << classes.error().ToString();
  const std::vector<int32_t> tail = Tail(*classes);
  EXPECT_EQ(tail[2], classes->of_id[(7 * 'a') % 256]);
  EXPECT_NE(tail[3], tail[0]);  // The bytes E9 E9, which are no text: "éé" is its spelling.
  EXPECT_EQ(tail[4], tail[1]);  // Text, for one of its characters is none of the alphabet's.
}

TEST_F(ToyClasses, AnIdWithoutATokenIsNamed) {
  const auto classes = Make({"the"}, {"<x>"}, 3);
  ASSERT_FALSE(classes);
  EXPECT_EQ(classes.error().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(classes.error().message(), HasSubstr("no token of id 258; the model wants all below 261"));
}

}  // namespace
}  // namespace dsv4::tokenizer
