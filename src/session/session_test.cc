// Prompts, requests and readers on the tokenizer of models/tiny. What drives an engine (generate.h) is tested
// where there are weights: tests/cli and tests/server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <map>

#include "chat/completion_parser.h"
#include "session/answer_options.h"
#include "session/answer_reader.h"
#include "session/prompt.h"
#include "session/text_model_testing.h"

namespace dsv4::session {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

const TextModel& Tiny() {
  static const TextModel text = MakeTinyTextModel("models/tiny/tokenizer.json", "v4-0731");
  return text;
}

std::vector<chat::Message> Talk() {
  return {{.role = chat::Role::kSystem, .content = "Be brief."},
          {.role = chat::Role::kUser, .content = "a"},
          {.role = chat::Role::kAssistant, .content = "b"},
          {.role = chat::Role::kUser, .content = "c"}};
}

Prompt Rendered(chat::ThinkingMode mode) {
  return *MakePrompt(Tiny(), Talk(), RenderOptionsFor(Tiny(), mode, {}));
}

// Result of reading a whole answer of `text`, token by token.
chat::CollectedCompletion ReadAll(AnswerReader& reader, std::string_view text) {
  chat::CompletionCollector collector;
  const std::vector<int32_t> ids = *Tiny().tokenizer.Encode(text);
  for (const int32_t id : ids) {
    for (const chat::Delta& delta : reader.Feed({.id = id})) collector.Add(delta);
  }
  for (const chat::Delta& delta : reader.Finish(chat::EndCause::kStop)) collector.Add(delta);
  return collector.Take();
}

TEST(Prompt, IsTheRenderedTextAsIds) {
  const Prompt prompt = Rendered(chat::ThinkingMode::kThinking);
  EXPECT_TRUE(prompt.rendered.ends_in_reasoning);
  EXPECT_EQ(Tiny().tokenizer.Decode(prompt.ids), prompt.rendered.text());
}

TEST(Prompt, WithoutAnEffortTakesThatOfTheFormat) {
  const auto& efforts = Tiny().profile->efforts;
  ASSERT_FALSE(efforts.empty());
  EXPECT_EQ(RenderOptionsFor(Tiny(), chat::ThinkingMode::kThinking, {}).effort.value_or(""),
            Tiny().profile->default_effort);
  const std::string other(efforts.back().name);
  EXPECT_EQ(RenderOptionsFor(Tiny(), chat::ThinkingMode::kThinking, other).effort, other);
  EXPECT_TRUE(Tiny().CheckEffort(other).ok());
  EXPECT_THAT(Tiny().CheckEffort("heroic").message(), HasSubstr("got 'heroic'"));
}

TEST(Prompt, TooManyBytesAreRefusedBeforeTheyAreEncoded) {
  size_t seen = 0;
  const auto prompt = MakePrompt(Tiny(), Talk(), RenderOptionsFor(Tiny(), chat::ThinkingMode::kChat, {}),
                                 [&](size_t num_bytes) {
                                   seen = num_bytes;
                                   return OutOfRange("too long");
                                 });
  EXPECT_EQ(seen, Rendered(chat::ThinkingMode::kChat).rendered.text().size());
  ASSERT_FALSE(prompt);
  EXPECT_EQ(prompt.error().message(), "too long");
}

TEST(Prompt, BranchesBehindTheFirstAndTheLastUserMarker) {
  const Prompt prompt = Rendered(chat::ThinkingMode::kThinking);
  const std::vector<int64_t> points = BranchPoints(Tiny(), prompt.ids);
  ASSERT_EQ(points.size(), 2u);
  EXPECT_LT(points[0], points[1]);
  for (const int64_t point : points)
    EXPECT_EQ(prompt.ids[static_cast<size_t>(point) - 1], Tiny().special->user);
  EXPECT_THAT(BranchPoints(Tiny(), *Tiny().tokenizer.Encode("no chat")), ElementsAre());
}

TEST(Request, HasTheStopTokensOfTheModelAndTheCaller) {
  const auto request = MakeRequest(Tiny(), {1, 2}, {.stop_tokens = {7}});
  ASSERT_TRUE(request);
  EXPECT_THAT(request->stop_tokens,
              UnorderedElementsAre(7, Tiny().special->end_of_sentence, Tiny().special->user));
  EXPECT_EQ(request->max_tokens, std::numeric_limits<int64_t>::max());
  const auto wrong = MakeRequest(Tiny(), {1}, {.stop_tokens = {5120}});
  ASSERT_FALSE(wrong);
  EXPECT_THAT(wrong.error().message(), HasSubstr("got 5120, wanted 0..5119"));
}

TEST(Request, IgnoringTheEndMakesStopTokensImpossible) {
  const auto request = MakeRequest(Tiny(), {1}, {.ignore_eos = true});
  ASSERT_TRUE(request);
  for (const int32_t token : request->stop_tokens)
    EXPECT_EQ(request->sampling.logit_bias.at(token), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(MakeRequest(Tiny(), {1}, {})->sampling.logit_bias.empty());
}

TEST(Request, CachesOfOwnersAndSaltsAreApart) {
  const auto salt = [](std::string text, uint64_t owner) {
    return MakeRequest(Tiny(), {1}, {.cache_salt = std::move(text)}, owner)->cache_salt;
  };
  EXPECT_EQ(salt("a", 1), salt("a", 1));
  EXPECT_NE(salt("a", 1), salt("b", 1));
  EXPECT_NE(salt("a", 1), salt("a", 2));
}

TEST(AnswerReader, CountsTheReasoningWithItsCloser) {
  const Prompt prompt = Rendered(chat::ThinkingMode::kThinking);
  AnswerReader reader(Tiny(), ChatFormat(prompt, {}, {}));
  const auto all = ReadAll(reader, "Hm, so.</think>Yes.");
  EXPECT_EQ(all.message.reasoning_content, "Hm, so.");
  EXPECT_EQ(all.message.content, "Yes.");
  const auto reasoning = static_cast<int64_t>(Tiny().tokenizer.Encode("Hm, so.</think>")->size());
  EXPECT_EQ(reader.num_reasoning_tokens(), reasoning);
  EXPECT_EQ(reader.num_output_tokens(),
            reasoning + static_cast<int64_t>(Tiny().tokenizer.Encode("Yes.")->size()));
}

TEST(AnswerReader, EndsAtAStopStringAndCountsNothingBehindIt) {
  const Prompt prompt = Rendered(chat::ThinkingMode::kChat);
  AnswerReader reader(Tiny(), ChatFormat(prompt, {}, {"stop"}));
  const auto all = ReadAll(reader, "one stop two three four");
  EXPECT_EQ(all.message.content, "one ");
  EXPECT_EQ(all.stop_string, "stop");
  EXPECT_TRUE(reader.done());
  EXPECT_LT(reader.num_output_tokens(),
            static_cast<int64_t>(Tiny().tokenizer.Encode("one stop two three four")->size()));
}

TEST(AnswerReader, OutsideOfAChatAllIsContent) {
  AnswerReader reader(Tiny(), {.stop = {"END"}});
  const auto all = ReadAll(reader, "a</think>b END c");
  EXPECT_EQ(all.message.content, "a</think>b ");
  EXPECT_EQ(all.stop_string, "END");
  EXPECT_EQ(reader.num_reasoning_tokens(), 0);
}

TEST(AnswerReader, WithoutParallelCallsTheFirstCallIsTheEnd) {
  const Prompt prompt = Rendered(chat::ThinkingMode::kChat);
  const auto tools = *chat::ParseTools(
      *chat::ReadJson(R"([{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])",
                      "tools"),
      "tools");
  const std::string_view answer =
      "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n</｜DSML｜invoke>\n<｜DSML｜invoke "
      "name=\"f\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
  AnswerFormat format = ChatFormat(prompt, tools, {});
  AnswerReader both(Tiny(), format);
  EXPECT_EQ(ReadAll(both, answer).message.tool_calls.size(), 2u);
  format.parallel_calls = false;
  AnswerReader one(Tiny(), format);
  const auto all = ReadAll(one, answer);
  EXPECT_EQ(all.message.tool_calls.size(), 1u);
  EXPECT_EQ(all.finish_reason, chat::FinishReason::kToolCalls);
}

TEST(AnswerReader, TellsTokensApartWhereTheyAreWanted) {
  const Prompt prompt = Rendered(chat::ThinkingMode::kThinking);
  AnswerFormat format = ChatFormat(prompt, {}, {});
  format.wants_tokens = true;
  AnswerReader reader(Tiny(), format);
  (void)ReadAll(reader, "a</think>b");
  const AnswerTokens tokens = reader.TakeTokens();
  EXPECT_EQ(tokens.reasoning.size(), 1u);
  EXPECT_EQ(tokens.content.size(), 1u);
  EXPECT_TRUE(reader.TakeTokens().content.empty());
}

TEST(AnswerReader, AFailedGenerationHasItsStatusAndNoEnd) {
  AnswerReader reader(Tiny(), {});
  EXPECT_TRUE(reader
                  .Read({.kind = engine::Event::Kind::kFinished,
                         .finish_reason = engine::FinishReason::kError,
                         .status = Internal("op linear")})
                  .empty());
  EXPECT_TRUE(reader.done());
  EXPECT_EQ(reader.status().message(), "op linear");
}

TEST(TextModel, RefusesAVocabularySmallerThanTheTokenizers) {
  TextModel text = MakeTinyTextModel("models/tiny/tokenizer.json", "v4");
  EXPECT_TRUE(text.SetVocabSize(text.tokenizer.num_ids() + 3, "tiny").ok());
  const std::vector<uint8_t> allowed = text.AllowedTokens();
  EXPECT_EQ(allowed.size(), static_cast<size_t>(text.tokenizer.num_ids()) + 3);
  EXPECT_EQ(allowed.back(), 0);
  EXPECT_EQ(allowed[static_cast<size_t>(text.special->user)], 1);
  EXPECT_THAT(text.SetVocabSize(10, "tiny").message(), HasSubstr("config.json a vocab_size of 10"));
}

// A folder of the tokenizer and the files given.
std::string FolderOf(const std::string& name, const std::map<std::string, std::string>& files) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  std::filesystem::copy("models/tiny/tokenizer.json", folder / "tokenizer.json");
  for (const auto& [file, text] : files) std::ofstream(folder / file) << text;
  return folder.string();
}

std::string RevisionOf(const std::string& folder, const std::string& option = "") {
  const auto profile = FindProfile(folder, option);
  return profile ? std::string((*profile)->revision) : profile.error().message();
}

TEST(TextModel, TheModelTypeTellsTheChatFormat) {
  const std::string v41 = FolderOf("v41", {{"config.json", R"({"model_type": "deepseek_v41"})"}});
  EXPECT_EQ(RevisionOf(v41), "v4.1");
  EXPECT_EQ(RevisionOf(v41, "v4-0731"), "v4-0731");
  EXPECT_EQ(RevisionOf(FolderOf(
                "v41text", {{"config.json", R"({"text_config": {"model_type": "deepseek_v41_text"}})"}})),
            "v4.1");
  EXPECT_EQ(
      RevisionOf(FolderOf("v41flat", {{"config.json", R"({"architectures": ["DeepseekV41ForCausalLM"]})"}})),
      "v4.1");
  EXPECT_EQ(
      RevisionOf(FolderOf("v41inner", {{"config.json", R"({"dim": 5120, "kv_source_layers": [2, 8]})"}})),
      "v4.1");
  EXPECT_EQ(RevisionOf(FolderOf("v41own", {{"config.json", R"({"model_type": "deepseek_v41"})"},
                                           {"generation_config.json", R"({"dsv4_chat_revision": "v4"})"}})),
            "v4");
  EXPECT_EQ(RevisionOf(FolderOf("v4", {{"config.json", R"({"model_type": "deepseek_v4"})"}})), "v4");
  EXPECT_EQ(RevisionOf(FolderOf("none", {})), "v4");
  EXPECT_THAT(RevisionOf(FolderOf("broken", {{"config.json", "{"}})), HasSubstr("config.json"));
  // Its marker is no token of V4's tokenizers.
  const auto text = TextModel::Load(v41, "");
  ASSERT_FALSE(text);
  EXPECT_THAT(text.error().message(),
              HasSubstr("no token \"<｜System｜>\"; a chat of revision v4.1 needs it"));
}

TEST(TextModel, ASystemTurnOfV41EndsAnAnswer) {
  const TextModel text = MakeTinyTextModel("models/tiny/tokenizer.json", "v4.1");
  EXPECT_EQ(text.StopTokens().size(), 3u);
  EXPECT_TRUE(text.stop_set.Contains(*text.tokenizer.FindToken("<｜System｜>")));
  EXPECT_TRUE(text.CheckEffort("80").ok());
  EXPECT_THAT(text.CheckEffort("101").message(), HasSubstr("and numbers from 1 to 100"));
}

TEST(TextModel, RawTextHasNoChat) {
  const auto text = TextModel::LoadRaw("models/tiny");
  ASSERT_TRUE(text) << text.error().ToString();
  EXPECT_EQ(text->profile, nullptr);
  EXPECT_FALSE(text->special);
  EXPECT_EQ(text->StopTokens().size(), 2u);
  EXPECT_TRUE(text->CheckEffort("anything").ok());
}

}  // namespace
}  // namespace dsv4::session
