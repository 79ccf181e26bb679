// tokenizer.json files that are wrong: each one an error that names the position, never a crash or a silent
// default.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "tokenizer/testing.h"
#include "tokenizer/tokenizer.h"

namespace dsv4::tokenizer {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

void ExpectError(std::string_view text, StatusCode code, const std::string& message) {
  const auto tokenizer = Tokenizer::Parse(text, "hostile.json");
  ASSERT_FALSE(tokenizer) << "accepted; wanted an error with: " << message;
  EXPECT_EQ(tokenizer.error().code(), code) << tokenizer.error().ToString();
  EXPECT_THAT(tokenizer.error().message(), StartsWith("hostile.json: "));
  EXPECT_THAT(tokenizer.error().message(), HasSubstr(message));
  EXPECT_LT(tokenizer.error().message().size(), 1000u);
}

struct Mutation {
  StatusCode code;
  std::string message;
  std::function<void(json&)> apply;
};

constexpr StatusCode kBad = StatusCode::kInvalidArgument;
constexpr StatusCode kNo = StatusCode::kUnimplemented;

TEST(HostileTokenizerFile, EveryMutationIsNamed) {
  const std::vector<Mutation> mutations = {
      // The document.
      {kBad, "model: got null", [](json& f) { f.erase("model"); }},
      {kBad, "model: got [1]", [](json& f) { f["model"] = {1}; }},
      {kNo, "model.type: got \"Unigram\"", [](json& f) { f["model"]["type"] = "Unigram"; }},
      {kNo, "model.type: got 3", [](json& f) { f["model"]["type"] = 3; }},
      {kNo, "model.dropout: got 0.1", [](json& f) { f["model"]["dropout"] = 0.1; }},
      {kNo, "model.unk_token", [](json& f) { f["model"]["unk_token"] = 3; }},
      {kNo, "model.byte_fallback: got 1", [](json& f) { f["model"]["byte_fallback"] = 1; }},
      {kNo, "model.ignore_merges: got true", [](json& f) { f["model"]["ignore_merges"] = true; }},
      {kNo, "model.end_of_word_suffix", [](json& f) { f["model"]["end_of_word_suffix"] = "</w>"; }},
      {kNo, "normalizer: got {\"type\":\"NFC\"}",
       [](json& f) {
         f["normalizer"] = {{"type", "NFC"}};
       }},
      {kNo, "normalizer",
       [](json& f) {
         f["normalizer"]["normalizers"] = {{{"type", "NFC"}}};
       }},
      {kNo, "post_processor",
       [](json& f) {
         f["post_processor"] = {{"type", "Sequence"}, {"processors", {{{"type", "Reversal"}}}}};
       }},
      {kNo, "decoder: got null", [](json& f) { f.erase("decoder"); }},
      {kNo, "truncation", [](json& f) { f["truncation"] = 5; }},
      // The vocabulary.
      {kBad, "model.vocab: got null", [](json& f) { f["model"].erase("vocab"); }},
      {kBad, "model.vocab: got []", [](json& f) { f["model"]["vocab"] = json::array(); }},
      {kBad, "model.vocab: no token for byte 0x", [](json& f) { f["model"]["vocab"] = json::object(); }},
      {kBad, "no token for byte 0x20 (\"Ġ\")", [](json& f) { f["model"]["vocab"].erase("Ġ"); }},
      {kBad, "entry \"the\": got -1", [](json& f) { f["model"]["vocab"]["the"] = -1; }},
      {kBad, "entry \"the\": got 1.5", [](json& f) { f["model"]["vocab"]["the"] = 1.5; }},
      {kBad, "entry \"the\": got \"4\"", [](json& f) { f["model"]["vocab"]["the"] = "4"; }},
      {kBad, "entry \"the\": got null", [](json& f) { f["model"]["vocab"]["the"] = nullptr; }},
      {kBad, "entry \"the\": got an object", [](json& f) { f["model"]["vocab"]["the"] = json::object(); }},
      {kBad, "entry \"the\": got a list", [](json& f) { f["model"]["vocab"]["the"] = json::array(); }},
      {kBad, "entry \"the\": got 1048576", [](json& f) { f["model"]["vocab"]["the"] = 1 << 20; }},
      {kBad, "entry \"the\": got 18446744073709551615",
       [](json& f) { f["model"]["vocab"]["the"] = ~uint64_t{0}; }},
      {kBad, "id 400 is already taken", [](json& f) { f["model"]["vocab"]["the"] = 400; }},
      // The merges.
      {kBad, "model.merges: got null", [](json& f) { f["model"].erase("merges"); }},
      {kBad, "model.merges: got {}", [](json& f) { f["model"]["merges"] = json::object(); }},
      {kBad, "merges entry 8: got \"a b c\"", [](json& f) { f["model"]["merges"].push_back("a b c"); }},
      {kBad, "merges entry 8: got \"ab\"", [](json& f) { f["model"]["merges"].push_back("ab"); }},
      {kBad, "merges entry 8: got 5", [](json& f) { f["model"]["merges"].push_back(5); }},
      {kBad, "merges entry 8: got an object",
       [](json& f) { f["model"]["merges"].push_back(json::object()); }},
      {kBad, "merges entry 8: got a list of 1", [](json& f) { f["model"]["merges"].push_back({"a"}); }},
      {kBad, "merges entry 8: got a list of more",
       [](json& f) {
         f["model"]["merges"].push_back({"a", "b", "c"});
       }},
      {kBad, "merges entry 8: got 1",
       [](json& f) {
         f["model"]["merges"].push_back({"a", 1});
       }},
      {kBad, "\"q\" + \"z\"): \"qz\" is not in model.vocab",
       [](json& f) { f["model"]["merges"].push_back("q z"); }},
      {kBad, "\"nope\" is not in model.vocab", [](json& f) { f["model"]["merges"].push_back("nope z"); }},
      {kBad, "given twice", [](json& f) { f["model"]["merges"].push_back("t h"); }},
      {kBad, "\"\" is not in model.vocab", [](json& f) { f["model"]["merges"].push_back(" a"); }},
      // The added tokens.
      {kBad, "added_tokens: got 3", [](json& f) { f["added_tokens"] = 3; }},
      {kBad, "added_tokens[0]: got 3", [](json& f) { f["added_tokens"][0] = 3; }},
      {kBad, "added_tokens[1].content: got \"\"", [](json& f) { f["added_tokens"][1]["content"] = ""; }},
      {kBad, "added_tokens[1].content",
       [](json& f) { f["added_tokens"][1]["content"] = std::string(5000, 'x'); }},
      {kBad, "\"<think>\": id: got -1", [](json& f) { f["added_tokens"][4]["id"] = -1; }},
      {kBad, "\"<think>\": id: got null", [](json& f) { f["added_tokens"][4].erase("id"); }},
      {kBad, "\"<think>\": id: got 4294967299", [](json& f) { f["added_tokens"][4]["id"] = 4294967299; }},
      {kBad, "\"<think>\": id 300 is already taken", [](json& f) { f["added_tokens"][4]["id"] = 300; }},
      {kBad, "\"<think>\": id 7 is already taken", [](json& f) { f["added_tokens"][4]["id"] = 7; }},
      {kBad, "\"</think>\": given twice", [](json& f) { f["added_tokens"][4]["content"] = "</think>"; }},
      {kBad, "\"the\": got id 296, but model.vocab gives it 401",
       [](json& f) { f["added_tokens"][4]["content"] = "the"; }},
      {kNo, "\"<think>\": lstrip: got true", [](json& f) { f["added_tokens"][4]["lstrip"] = true; }},
      {kNo, "\"<think>\": single_word: got true",
       [](json& f) { f["added_tokens"][4]["single_word"] = true; }},
      {kBad, "special: got \"yes\"", [](json& f) { f["added_tokens"][4]["special"] = "yes"; }},
      // The pre-tokenizer.
      {kNo, "pre_tokenizer: got null", [](json& f) { f.erase("pre_tokenizer"); }},
      {kNo, "pre_tokenizer: got {\"type\":\"Whitespace\"}",
       [](json& f) {
         f["pre_tokenizer"] = {{"type", "Whitespace"}};
       }},
      {kNo, "one that ends in ByteLevel", [](json& f) { f["pre_tokenizer"]["pretokenizers"].erase(3); }},
      {kNo, "pretokenizers[1]: got {\"type\":\"Digits\"}",
       [](json& f) {
         f["pre_tokenizer"]["pretokenizers"][1] = {{"type", "Digits"}};
       }},
      {kNo, "pretokenizers[4]",
       [](json& f) {
         f["pre_tokenizer"]["pretokenizers"].push_back(f["pre_tokenizer"]["pretokenizers"][0]);
       }},
      {kNo, "add_prefix_space: got true",
       [](json& f) { f["pre_tokenizer"]["pretokenizers"][3]["add_prefix_space"] = true; }},
      {kBad, "pretokenizers[0].behavior: got \"Sideways\"",
       [](json& f) { f["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Sideways"; }},
      {kBad, "pretokenizers[0].pattern: got 5",
       [](json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"] = 5; }},
      {kBad, "does not compile it",
       [](json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(((("; }},
      {kNo, "pre_tokenizer",
       [](json& f) {
         for (int i = 0; i < 10; ++i)
           f["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {f["pre_tokenizer"]}}};
       }},
  };
  for (const Mutation& mutation : mutations) {
    SCOPED_TRACE(mutation.message);
    json file = testing::ToyFile();
    mutation.apply(file);
    ExpectError(file.dump(), mutation.code, mutation.message);
  }
}

TEST(HostileTokenizerFile, Text) {
  ExpectError("", kBad, "not valid JSON");
  ExpectError("7", kBad, "document: got 7");
  ExpectError("[]", kBad, "document: got []");
  ExpectError("{\"model\": {\"vocab\": {\"a\": 1", kBad, "not valid JSON");
  ExpectError("{\"model\": {\"vocab\": {\"a\": 1e999}}}", kBad, "not valid JSON");
  ExpectError("{\"a\": \"\xFF\"}", kBad, "not valid JSON");
  ExpectError("{\"a\": \"\\ud800\"}", kBad, "not valid JSON");
  ExpectError(std::string(1 << 20, '['), kBad, "nested deeper than 32 levels");
  ExpectError("{\"model\": {}, \"model\": {}}", kBad, "key \"model\" twice");
  ExpectError("{\"model\": {\"vocab\": {}, \"vocab\": {}}}", kBad, "key \"vocab\" twice");
  ExpectError(testing::ToyFile().dump() + "x", kBad, "not valid JSON");
  ExpectError(testing::ToyFile().dump() + std::string("\0x", 2), kBad, "not valid JSON: a zero byte");
  // The same token twice cannot be had from a tree.
  std::string twice = testing::ToyFile().dump();
  const size_t at = twice.find("\"the\":");
  twice.insert(at, "\"the\":777,");
  ExpectError(twice, kBad, "model.vocab entry \"the\": given twice");
}

// Cut anywhere and with any byte changed, the file is refused or loaded; a loaded one encodes and decodes.
TEST(HostileTokenizerFile, DamagedBytes) {
  const std::string whole = testing::ToyFile().dump();
  std::mt19937 random(9);
  int num_loaded = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string text = whole;
    if (round % 4 == 0) {
      text.resize(random() % text.size());
    } else {
      for (unsigned i = 0; i < 1 + random() % 3; ++i)
        text[random() % text.size()] = static_cast<char>(random());
    }
    const auto tokenizer = Tokenizer::Parse(text, "damaged.json");
    if (!tokenizer) {
      EXPECT_THAT(tokenizer.error().message(), StartsWith("damaged.json: "));
      continue;
    }
    ++num_loaded;
    const auto ids = tokenizer->Encode("a the <｜User｜> 你好 123");
    if (ids) {
      EXPECT_FALSE(tokenizer->Decode(*ids).empty());
    }
  }
  EXPECT_GT(num_loaded, 0);
}

TEST(HostileTokenizerFile, SparseIdsAreFine) {
  json file = testing::ToyFile();
  file["model"]["vocab"]["the"] = (1 << 20) - 1;
  const Tokenizer tokenizer = testing::ParseOrDie(file);
  EXPECT_EQ(tokenizer.num_ids(), 1 << 20);
  EXPECT_EQ(*tokenizer.Encode("the"), std::vector<TokenId>{(1 << 20) - 1});
  EXPECT_FALSE(tokenizer.IsDefined(5000));
}

TEST(TokenizerFile, PartsThatWorkOnWholeInputsMeanNothing) {
  const auto ids = testing::ParseOrDie(testing::ToyFile()).Encode("abab the1");
  ASSERT_TRUE(ids);
  const std::vector<std::pair<const char*, json>> parts = {
      {"truncation",
       {{"direction", "Right"}, {"max_length", 2}, {"strategy", "LongestFirst"}, {"stride", 0}}},
      {"padding", {{"strategy", {{"Fixed", 512}}}, {"pad_id", 1}}},
      {"post_processor", {{"type", "TemplateProcessing"}, {"single", json::array()}}},
      {"post_processor", {{"type", "RobertaProcessing"}, {"sep", {"</s>", 2}}, {"cls", {"<s>", 0}}}},
      {"post_processor",
       {{"type", "Sequence"}, {"processors", {{{"type", "ByteLevel"}}, {{"type", "TemplateProcessing"}}}}}},
      {"decoder", {{"type", "Sequence"}, {"decoders", json::array({{{"type", "ByteLevel"}}})}}}};
  for (const auto& [key, value] : parts) {
    json file = testing::ToyFile();
    file[key] = value;
    const auto same = testing::ParseOrDie(file).Encode("abab the1");
    ASSERT_TRUE(same) << key;
    EXPECT_EQ(*same, *ids) << key;
  }
  json file = testing::ToyFile();
  file["model"]["unk_token"] = "<unk>";
  file["model"]["fuse_unk"] = true;
  file["model"]["byte_fallback"] = true;
  file["model"]["dropout"] = 0.0;
  EXPECT_EQ(*testing::ParseOrDie(file).Encode("abab the1"), *ids);
}

TEST(TokenizerFile, ByteLevelMayCutByItself) {
  json file = testing::ToyFile();
  file["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  const Tokenizer tokenizer = testing::ParseOrDie(file);
  // GPT-2's pattern keeps "'t" off and "ab" together; no merge crosses the cut.
  const auto ids = tokenizer.Encode("abab the1");
  ASSERT_TRUE(ids) << ids.error().ToString();
  EXPECT_THAT(*ids, ::testing::ElementsAre(404, 402, 7 * '1' % 256));
}

}  // namespace
}  // namespace dsv4::tokenizer
