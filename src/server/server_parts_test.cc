// Pieces of the server that HTTP tests reach only by chance: bounds of memory, constraints token by token,
// fields.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <set>
#include <thread>

#include "base/json.h"
#include "base/read_file.h"
#include "base/temporary_directory_testing.h"
#include "server/api/api_error.h"
#include "server/api/api_table.h"
#include "server/api/call_memory.h"
#include "server/api/fields.h"
#include "server/api/list_page.h"
#include "server/batch/batch_store.h"
#include "server/dialects/known_fields.h"
#include "server/http/http.h"
#include "server/observe/metrics.h"
#include "server/observe/unknown_fields.h"

namespace dsv4::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

chat::Message WithCall(const std::string& id, const std::string& arguments) {
  return {.role = chat::Role::kAssistant, .tool_calls = {{.id = id, .name = "f", .arguments = arguments}}};
}

TEST(CallMemory, KnowsACallByItsIdAsLongAsItMeansTheSame) {
  CallMemory memory;
  memory.Remember({"a"}, {{.name = "f", .arguments = R"({"x": [1,2]})"}}, "\n\nblock");
  std::vector<chat::Message> messages = {WithCall("a", R"({"x":[1, 2]})"), WithCall("a", R"({"x":[1, 3]})"),
                                         WithCall("b", R"({"x": [1,2]})"), WithCall("a", "{")};
  memory.Restore(messages);
  EXPECT_EQ(messages[0].sampled_calls, "\n\nblock");
  for (size_t i = 1; i < messages.size(); ++i) EXPECT_EQ(messages[i].sampled_calls, "") << i;
}

TEST(CallMemory, ForgetsTheLeastRecentlyUsed) {
  CallMemory memory(3000);
  const auto knows = [&](const std::string& id) {
    std::vector<chat::Message> messages = {WithCall(id, "{}")};
    memory.Restore(messages);
    return !messages[0].sampled_calls.empty();
  };
  for (const char* id : {"a", "b"})
    memory.Remember({id}, {{.name = "f", .arguments = "{}"}}, std::string(1000, 'x'));
  EXPECT_TRUE(knows("a"));
  for (const char* id : {"c", "d"})
    memory.Remember({id}, {{.name = "f", .arguments = "{}"}}, std::string(900, 'x'));
  EXPECT_FALSE(knows("b"));
  EXPECT_TRUE(knows("d"));
  memory.Remember({"huge"}, {{.name = "f", .arguments = "{}"}}, std::string(9000, 'x'));
  EXPECT_FALSE(knows("huge"));
}

// A folder that a disk, or a person, has damaged: the thread of batches goes on, and the others are there.
TEST(BatchStore, WhatIsDamagedIsLeftOut) {
  const TemporaryDirectory folder;
  const auto open = [&] { return BatchStore::Open({.directory = folder.path(), .max_bytes = 1000}); };
  std::string file_id;
  std::string batch_id;
  {
    auto store = *open();
    file_id = ParseJson(*store->AddFile(7, "f", "batch", "{}"), "file")->at("id").get<std::string>();
    const NewBatch batch{.endpoint = "/v1/responses", .input_file = file_id};
    batch_id = ParseJson(*store->AddBatch(7, batch), "batch")->at("id").get<std::string>();
  }
  const std::string path = folder / ("batches/" + batch_id + ".json");
  const std::string whole = *ReadFile(path);
  std::vector<std::string> damaged = {"[]", "7", "null", "\"a\"", "{}", "{", ""};
  for (const char* name :
       {"id", "owner", "status", "endpoint", "input_file_id", "created_at", "expires_at"}) {
    for (const Json& value : {Json(), Json(-1), Json("../x"), Json::array(), Json(1e300)}) {
      Json object = *ParseJson(whole, "batch");
      if (value.is_string() && (object[name] == "validating" || object[name] == "/v1/responses")) continue;
      object[name] = value;
      damaged.push_back(object.dump());
    }
  }
  for (const std::string& text : damaged) {
    std::ofstream(path) << text;
    auto opened = open();
    ASSERT_TRUE(opened.has_value()) << text;
    BatchStore& store = **opened;
    EXPECT_FALSE(store.Oldest().has_value()) << text;
    EXPECT_EQ(store.Batch(7, batch_id).error().code(), StatusCode::kNotFound) << text;
    EXPECT_THAT(*store.Batches(7), HasSubstr(R"("data":[])")) << text;
    EXPECT_FALSE(store.End(batch_id, BatchEnd::kCompleted).ok()) << text;
    EXPECT_TRUE(store.File(7, file_id).has_value());
  }
  std::ofstream(path) << whole;
  EXPECT_EQ((*open())->Oldest()->id, batch_id);
}

TEST(Fields, TheFirstMistakeIsKeptAndNamesTheField) {
  const chat::JsonValue json =
      *chat::ReadJson(R"({"a": 1, "b": "x", "c": 99999999999, "d": null, "e": 1e300})", "test");
  Fields fields(json, "outer.");
  int number = 0;
  float real = 0.0F;
  EXPECT_TRUE(fields.Read("a", &number));
  EXPECT_FALSE(fields.Read("d", &number));
  EXPECT_FALSE(fields.Read("missing", &number));
  EXPECT_TRUE(fields.status().ok());
  EXPECT_FALSE(fields.Read("c", &number));
  EXPECT_EQ(fields.status().message(), "outer.c: got 99999999999, wanted an integer");
  EXPECT_FALSE(fields.Read("b", &real));
  EXPECT_EQ(FieldOf(fields.status()), "outer.c");
  EXPECT_EQ(number, 1);
  EXPECT_THAT(fields.Unknown(), ElementsAre("e"));
}

TEST(Fields, ANumberThatFp32LacksIsRefusedAsItWasWritten) {
  const chat::JsonValue json = *chat::ReadJson(R"({"small": 1e-60, "large": 3e38, "larger": -1e39})", "test");
  Fields fields(json);
  float real = 1.0F;
  EXPECT_TRUE(fields.Read("small", &real));
  EXPECT_EQ(real, 0.0F);
  EXPECT_TRUE(fields.Read("large", &real));
  EXPECT_FALSE(fields.Read("larger", &real));
  EXPECT_THAT(std::string(fields.status().message()),
              HasSubstr("larger: got -1e+39, wanted a number that fp32 has"));
}

TEST(Fields, TakesEveryNumberOf64Bits) {
  const auto read = [](const std::string& number) -> Result<uint64_t> {
    const chat::JsonValue json = *chat::ReadJson("{\"seed\": " + number + "}", "test");
    Fields fields(json);
    uint64_t seed = 0;
    if (!fields.Read("seed", &seed)) return Error(fields.status());
    return seed;
  };
  EXPECT_EQ(read("0"), 0U);
  EXPECT_EQ(read("9223372036854775808"), uint64_t{1} << 63);
  EXPECT_EQ(read("18446744073709551615"), UINT64_MAX);
  EXPECT_EQ(read("-1"), UINT64_MAX);
  EXPECT_EQ(read("-9223372036854775808"), uint64_t{1} << 63);
  for (const char* wrong : {"18446744073709551616", "-9223372036854775809", "1.5", "1e3"}) {
    const Result<uint64_t> refused = read(wrong);
    ASSERT_FALSE(refused.has_value()) << wrong;
    EXPECT_THAT(refused.error().message(), HasSubstr("seed: got "));
    EXPECT_THAT(refused.error().message(),
                HasSubstr("wanted an integer of -9223372036854775808 to 18446744073709551615"));
  }
  EXPECT_THAT(read("\"7\"").error().message(), HasSubstr("seed: got string, wanted an integer"));
}

TEST(KnownFields, AreRefusedByNameUnlessTheyAskForNothing) {
  std::string_view before;
  for (const KnownField& field : UnsupportedFields()) {
    EXPECT_LT(before, field.name) << "by name";
    before = field.name;
    const auto refused = [&](std::string_view value) {
      // Beside the field without which it says nothing.
      const std::string_view other = field.only_beside.substr(0, field.only_beside.find('|'));
      const std::string beside = other.empty() ? "" : fmt::format(R"(, "{}": 1)", other);
      const auto json = *chat::ReadJson(fmt::format(R"({{"{}": {}{}}})", field.name, value, beside), "test");
      Fields fields(json);
      RefuseUnsupported(fields);
      return FieldOf(fields.status()) == field.name ? fields.status() : Status();
    };
    for (const char* nothing : {"null", "\"\"", "[]"}) EXPECT_TRUE(refused(nothing).ok()) << field.name;
    EXPECT_EQ(refused("false").ok(), field.neutral != "true") << field.name;
    if (!field.neutral.empty()) {
      EXPECT_TRUE(refused(field.neutral).ok()) << field.name;
    }
    for (const char* something : {"\"x\"", "[7]", "0.5"}) {
      EXPECT_EQ(FieldOf(refused(something)), field.name) << something;
    }
    // Requests within bounds are not refused.
    const auto json = *chat::ReadJson(fmt::format(R"({{"{}": 0.5}})", field.name), "test");
    Fields fields(json);
    fields.Find(field.name);
    RefuseUnsupported(fields);
    EXPECT_TRUE(fields.status().ok());
  }
  for (const char* number : {R"({"typical_p": 1.0})", R"({"length_penalty": 1})"}) {
    const auto json = *chat::ReadJson(number, "test");
    Fields fields(json);
    RefuseUnsupported(fields);
    EXPECT_TRUE(fields.status().ok()) << number;
  }
}

// No field of another server is ignored in a dialect where it would change an answer.
TEST(KnownFields, EveryFieldOfTheOthersIsTakenRefusedOrChangesNothing) {
  const Json file =
      *ParseJson(*ReadFile("tests/fixtures/rival-fields.json", FileKind::kAny), "rival-fields.json");
  std::set<std::string> idle;
  const std::string page = *ReadFile("docs/serving/requests.md", FileKind::kAny);
  for (const IdleFields& group : FieldsWithoutEffect()) {
    for (const std::string_view name : group.names) {
      EXPECT_TRUE(idle.emplace(name).second) << name << " twice";
      EXPECT_THAT(page, HasSubstr(fmt::format("`{}`", name)));
    }
  }
  std::set<std::string_view> refused;
  for (const KnownField& field : UnsupportedFields()) {
    refused.insert(field.name);
    EXPECT_FALSE(idle.contains(std::string(field.name)))
        << field.name << " is refused and said to change nothing";
  }
  const std::map<std::string, ApiReader> readers = {
      {"chat", kChat}, {"completions", kCompletions}, {"responses", kResponses}, {"messages", kMessages}};
  size_t names_seen = 0;
  for (const auto& [list, contents] : file.at("lists").items()) {
    const ApiReader reader = readers.at(list.substr(list.rfind('.') + 1));
    for (const Json& name : contents.at("names")) {
      ++names_seen;
      const bool taken = std::ranges::any_of(ApiFields(), [&](const ApiField& field) {
        return (field.readers & reader) != 0 && field.name == name.get<std::string>();
      });
      EXPECT_TRUE(taken || refused.contains(name.get<std::string>()) ||
                  idle.contains(name.get<std::string>()))
          << list << ": " << name;
    }
  }
  EXPECT_GT(names_seen, 400u);
}

TEST(UnknownFields, HaveABoundAndHarmlessNames) {
  Metrics metrics("tiny", "0");
  UnknownFields fields(metrics);
  EXPECT_EQ(fields.Note("/v1/completions", std::vector<std::string>{"a\r\nX-Key: 1", "text.verbosity"}),
            "a??X-Key??1, text.verbosity");
  std::vector<std::string> many;
  for (int i = 0; i < 200; ++i) many.push_back(fmt::format("field{}", i));
  many.push_back(std::string(5000, 'x'));
  const std::string listed = fields.Note("/v1/completions", many);
  EXPECT_TRUE(listed.ends_with("field15, ...")) << listed;
  const std::string text = metrics.Text();
  EXPECT_THAT(text, HasSubstr("dsv4_unknown_request_fields_total{field=\"text.verbosity\"} 1"));
  EXPECT_THAT(text, HasSubstr(fmt::format("dsv4_unknown_request_fields_total{{field=\"field{}\"}} 1",
                                          UnknownFields::kMaxNames - 3)));
  EXPECT_THAT(text, Not(HasSubstr(fmt::format("field{}\"", UnknownFields::kMaxNames - 2))));
  EXPECT_THAT(text, HasSubstr(fmt::format("{{field=\"other\"}} {}", 201 - (UnknownFields::kMaxNames - 2))));
}

TEST(ApiError, TheFieldOfAMessage) {
  EXPECT_EQ(FieldOf(InvalidArgument("messages[2].content: got null")), "messages[2].content");
  EXPECT_EQ(FieldOf(InvalidArgument("it went wrong: badly")), "");
  EXPECT_EQ(FieldOf(InvalidArgument("nothing")), "");
  EXPECT_EQ(HttpStatus(ResourceExhausted("x")), 429);
  EXPECT_EQ(HttpStatus(Internal("x")), 500);
}

}  // namespace
// Says nothing, and hands out how it would be woken.
class SilentReply final : public Reply {
 public:
  explicit SilentReply(std::promise<std::function<void()>>& wake) : wake_(wake) {}
  void Advance(ReplyOutput&) override {}
  void OnProgress(std::function<void()> wake) override { wake_.set_value(std::move(wake)); }

 private:
  std::promise<std::function<void()>>& wake_;
};

TEST(
    HttpServer,
    IsWokenWhileItEndsAndAfterwards) {  // For AddressSanitizer: an engine's thread once held a timer of a server that was gone.
  for (int round = 0; round < 2; ++round) {
    std::promise<std::function<void()>> promise;
    auto server = std::move(*HttpServer::Listen(
        {.port = 0, .drain_timeout = std::chrono::milliseconds(0)},
        [&](const HttpRequest&) { return std::make_unique<SilentReply>(promise); },
        [](const HttpRequest&) { return std::unique_ptr<Reply>(); },
        [](int, std::string_view message) { return std::string(message); }));
    std::thread running([&] { server->Run([] {}); });
    const std::string address = server->address();
    sockaddr_in to = {
        .sin_family = AF_INET,
        .sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)))),
        .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    const int client = ::socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(::connect(client, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
    constexpr std::string_view kRequest = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    ASSERT_EQ(::send(client, kRequest.data(), kRequest.size(), 0), static_cast<ssize_t>(kRequest.size()));
    const std::function<void()> wake = promise.get_future().get();
    std::atomic<bool> ended = false;
    std::thread engine([&] {
      while (!ended) wake();
    });
    server->Shutdown();
    running.join();
    server.reset();
    ended = true;
    engine.join();
    wake();
    ::close(client);
  }
}

// An answer that is not done when the server ends.
class UnfinishedReply final : public Reply {
 public:
  void Advance(ReplyOutput& out) override {
    if (streamed_) out.head = HttpHead{.streamed = true};
  }
  void OnProgress(std::function<void()>) override {}
  void Cut(ReplyOutput& out) override {
    if (!streamed_) out.head = HttpHead{.status = 503, .headers = {{"Retry-After", "1"}}};
    out.body = "stopped";
  }
  explicit UnfinishedReply(bool streamed) : streamed_(streamed) {}

 private:
  bool streamed_;
};

TEST(WithHeader, IsOnTheLastWordsOfACutReply) {
  for (const bool streamed : {false, true}) {
    const std::unique_ptr<Reply> reply =
        WithHeader(std::make_unique<UnfinishedReply>(streamed), "X-Notice", "a word");
    ReplyOutput out;
    reply->Advance(out);
    EXPECT_EQ(out.head.has_value(), streamed);
    reply->Cut(out);
    ASSERT_TRUE(out.head.has_value());
    EXPECT_EQ(
        std::ranges::count(out.head->headers, std::pair<std::string, std::string>("X-Notice", "a word")), 1);
    EXPECT_EQ(out.body, "stopped");
  }
}

TEST(ListPage, ListsAreCutAsTheQuerySays) {
  const std::vector<std::string> ids = {"a", "b", "c d", "e", "f"};  // The oldest first.
  const auto page = [&](std::string_view query) {
    const Result<ListPage> found = PageOf(query, ids, {.limit = 3, .most = 4});
    if (!found) return found.error().message();
    std::string text;
    for (const size_t i : found->indices) text += ids[i] + ' ';
    return text + (found->has_more ? "more" : "end");
  };
  EXPECT_EQ(page(""), "f e c d more");
  EXPECT_EQ(page("order=desc&limit=4"), "f e c d b more");
  EXPECT_EQ(page("order=asc"), "a b c d more");
  EXPECT_EQ(page("order=asc&after=c%20d"), "e f end");
  EXPECT_EQ(page("after=c%20d"), "b a end");
  EXPECT_EQ(page("after=a"), "end");
  EXPECT_EQ(page("limit=1&before=b"), "c d more");
  EXPECT_EQ(page("order=asc&before=c%20d&unknown=1&"), "a b end");
  EXPECT_EQ(page("order=asc&after=a&before=e"), "b c d end");
  EXPECT_EQ(page("after=a&before=f"), "end");
  EXPECT_THAT(QueryNames("a=1&b&%63=2&a=3&&=4"), ElementsAre("a", "b", "c"));
  const Result<ListPage> behind =
      PageOf("after_id=e&after=x", ids, {.limit = 9, .most = 9}, {.after = "after_id"});
  ASSERT_TRUE(behind);
  EXPECT_THAT(behind->indices, ElementsAre(2, 1, 0));
  EXPECT_THAT(page("limit=0"), HasSubstr("limit: got '0', wanted 1 to 4"));
  EXPECT_THAT(page("limit=5"), HasSubstr("limit: got '5'"));
  EXPECT_THAT(page("limit=2x"), HasSubstr("limit: got '2x'"));
  EXPECT_THAT(page("order=up"), HasSubstr("order: got 'up', wanted asc or desc"));
  EXPECT_THAT(page("after=x"), HasSubstr("after: 'x' is not in this list"));
  EXPECT_THAT(page("before=%78"), HasSubstr("before: 'x' is not in this list"));
}

}  // namespace dsv4::server
