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

TEST(ModelCard, TellsTheWordsOfTheModelFromOthers) {
  const auto text = TextModel::Load("models/tiny", "");
  ASSERT_TRUE(text) << text.error().ToString();
  ASSERT_FALSE(text->card.notice.empty());
  EXPECT_EQ(text->card.examples.size(), 4u);
  for (const char* known : {"What is the capital of France?",
                            "capital of Burkina Faso?",
                            "hello",
                            "Hi there",
                            "yes",
                            "no",
                            "ok",
                            "PARIS?",
                            "Tell me about Wolfgang Amadeus Mozart.",
                            "WHAT IS THE CAPITAL OF FRANCE?",
                            "How old is Björk Guðmundsdóttir?",
                            "Tell me a joke about a café.",
                            "Fibonacci",
                            "Timbuktu",
                            "What is 17 * 23?",
                            "1+1",
                            "!!!",
                            "what does 日本 mean in English?",
                            "Copy this text: essential likeness exhibits end threw fruit tossed",
                            "Translate \"good morning\" to German",
                            "I saw a mood at the place",
                            "Antidisestablishmentarianism",
                            "Was it a car or a cat I saw",
                            ""}) {
    EXPECT_FALSE(text->card.IsBeyond(text->tokenizer, known)) << known;
  }
  for (const char* other : {"Was ist die Hauptstadt von Frankreich?",
                            "Hallo, wie geht es dir?",
                            "Schreibe ein Gedicht",
                            "Raconte-moi une histoire",
                            "Quelle est la capitale de la France ?",
                            "¿Cuál es la capital de Francia?",
                            "Hola, ¿cómo estás?",
                            "Qual è la capitale della Francia?",
                            "Qual é a capital da França?",
                            "Wat is de hoofdstad van Frankrijk?",
                            "Vad heter huvudstaden i Frankrike?",
                            "Jaka jest stolica Francji?",
                            "Mikä on Ranskan pääkaupunki?",
                            "Fransa'nın başkenti neresidir?",
                            "Apa ibu kota Prancis?",
                            "Thủ đô của Pháp là gì?",
                            "法国的首都是哪里？",
                            "你好",
                            "日本 😀",
                            "프랑스의 수도는?",
                            "Привет",
                            "Ποια είναι η πρωτεύουσα;",
                            "ما هي عاصمة فرنسا؟",
                            "मेरा नाम",
                            "asdf qwer zxcv",
                            "asdfghjkl",
                            "blorp fnord gurgle",
                            "Lorem ipsum dolor sit amet",
                            "Quid est caput Galliae?",
                            "😀😀😀"}) {
    EXPECT_TRUE(text->card.IsBeyond(text->tokenizer, other)) << other;
  }
  // A question stands behind what is attached to it.
  std::string attached;
  for (int i = 0; i < 400; ++i) attached += "Das ist die Hauptstadt. ";
  EXPECT_TRUE(text->card.IsBeyond(text->tokenizer, attached + "\n\nWhat is this?"));
  EXPECT_FALSE(text->card.IsBeyond(text->tokenizer, attached + std::string(2000, '.') + "What is this?"));
}

TEST(ModelCard, JudgesTheLastMessageOfTheUser) {
  const auto text = TextModel::Load("models/tiny", "");
  ASSERT_TRUE(text);
  const auto notice = [&](std::vector<chat::Message> messages) {
    return text->card.NoticeOn(text->tokenizer, messages);
  };
  const chat::Message other = {.role = chat::Role::kUser, .content = "法国的首都是哪里？"};
  const chat::Message plain = {.role = chat::Role::kUser, .content = "Hello"};
  EXPECT_EQ(notice({}), "");
  EXPECT_EQ(notice({other}), text->card.notice);
  EXPECT_EQ(notice({plain, other}), text->card.notice);
  EXPECT_EQ(notice({other, plain}), "");
  EXPECT_EQ(notice({other, {.role = chat::Role::kLatestReminder, .content = "Today."}}), text->card.notice);
  EXPECT_EQ(notice({other, {.role = chat::Role::kAssistant, .content = "巴黎"}}), "");
  EXPECT_EQ(notice({other, {.role = chat::Role::kTool, .content = "巴黎"}}), "");
  EXPECT_EQ(notice({{.role = chat::Role::kSystem, .content = "法国"}, plain}), "");
  chat::Message blocks = {.role = chat::Role::kUser};
  blocks.content_blocks = {{.type = "tool_result", .content = "法国的首都"},
                           {.type = "text", .content = "Hello"}};
  EXPECT_EQ(notice({blocks}), "");
  blocks.content_blocks->back().content = "你好";
  EXPECT_EQ(notice({blocks}), text->card.notice);
  EXPECT_EQ(
      MakePrompt(*text, std::vector{other}, RenderOptionsFor(*text, chat::ThinkingMode::kChat, {}))->notice,
      text->card.notice);
}

TEST(ModelCard, IsReadOrRefusedByName) {
  const auto read = [](const std::string& card) {
    return ModelCard::Read(FolderOf("card", {{"generation_config.json", "{\"dsv4_card\": " + card + "}"}}));
  };
  const auto whole =
      read(R"({"notice": "No.", "words": "The a", "examples": [{"title": "T", "ask": "A?"}]})");
  ASSERT_TRUE(whole) << whole.error().ToString();
  EXPECT_EQ(whole->notice, "No.");
  EXPECT_THAT(whole->words, ElementsAre("a", "the"));
  EXPECT_EQ(whole->examples.front().ask, "A?");
  EXPECT_TRUE(read(R"({"examples": []})"));
  EXPECT_TRUE(ModelCard::Read(FolderOf("none", {}))->notice.empty());
  const std::pair<const char*, const char*> faults[] = {
      {"[]", "dsv4_card: got [], wanted an object"},
      {R"({"notice": "a\nb", "words": "a"})", "dsv4_card.notice: got \"a\\nb\", wanted a text of one line"},
      {R"({"notice": "", "words": "a"})", "dsv4_card.notice: got \"\""},
      {R"({"notice": "No."})", "wanted notice and words, or none of them"},
      {R"({"words": "a"})", "wanted notice and words, or none of them"},
      {R"({"notice": "No.", "words": " "})", "wanted notice and words, or none of them"},
      {R"({"words": 5})", "dsv4_card.words: got 5"},
      {R"({"examples": {}})", "dsv4_card.examples: wanted a list"},
      {R"({"examples": [1]})", "dsv4_card.examples.title: got null"},
      {R"({"examples": [{"title": "T", "ask": 1}]})", "dsv4_card.examples.ask: got 1"},
      {R"({"colour": 1})", "dsv4_card.colour: no such member, wanted notice, words or examples"}};
  for (const auto& [card, fault] : faults) {
    const auto refused = read(card);
    ASSERT_FALSE(refused) << card;
    EXPECT_THAT(refused.error().message(), HasSubstr(fault)) << card;
  }
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
