// The data of `dsv4 eval`: any bytes as JSON lines, read as each task reads them. They are graded against the
// line's own answer. Whatever a line says, it becomes tokens and a grade or an error that names the line;
// nothing is thrown.
#include <string>
#include <string_view>

#include "apps/eval/choice_question.h"
#include "apps/eval/eval_data.h"
#include "apps/eval/grading.h"
#include "apps/eval/logprob_lines.h"
#include "apps/eval/schema_check.h"
#include "base/check.h"
#include "tiny_model_folder.h"

namespace dsv4::apps {
namespace {

const EvalModel& Tiny() {
  static const std::unique_ptr<EvalModel> model = [] {
    ModelFlags flags;
    flags.model = testing::TinyModelFolder();
    flags.backend = "reference";
    Result<std::unique_ptr<EvalModel>> loaded = EvalModel::Load(flags, "", {});
    DSV4_CHECK(loaded) << loaded.error().ToString();
    return std::move(*loaded);
  }();
  return *model;
}

template <typename Value>
bool Check(const Result<Value>& result) {
  if (!result) {
    DSV4_CHECK(result.error().message().find("data") != std::string::npos) << result.error().ToString();
  }
  return result.has_value();
}

void Grade(const DataLine& line) {
  Check(IsRight(line, "The code is 7,341."));
  if (const Result<std::vector<std::string>> answers = TextsOf(line, "answer"))
    Check(IsRight(line, answers->front()));
  if (line.json.contains("expect")) {
    const Result<std::vector<Json>> expected = ExpectedCalls(line);
    if (Check(expected)) {
      DSV4_CHECK(SameCalls(*expected, *expected));
    }
  }
  if (!line.json.contains("tools") || !line.json["tools"].is_array()) return;
  const Json& tools = line.json["tools"];
  for (const Json& tool : tools) {
    if (!tool.is_object()) return;
  }
  ComplaintOf(tools, "f", line.json.value("arguments", Json::object()));
}

}  // namespace
}  // namespace dsv4::apps

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dsv4::apps;
  const auto lines = ParseJsonLines({reinterpret_cast<const char*>(data), size}, "data", 4);
  if (!Check(lines)) return 0;
  const EvalOptions options;
  TextReader reader(Tiny(), options);
  for (const DataLine& line : *lines) {
    if (const auto text = reader.Read(line)) {
      DSV4_CHECK(text->first >= 1 && text->first < text->tokens.size());
      DSV4_CHECK(text->other.empty() || text->other.size() == text->tokens.size());
    }
    Check(ReadChoiceQuestion(line, Tiny(), /*bos=*/true));
    Grade(line);
  }
  return 0;
}

extern "C" bool FuzzInputIsAccepted(const uint8_t* data, size_t size) {
  return dsv4::apps::ParseJsonLines({reinterpret_cast<const char*>(data), size}, "seed", 4).has_value();
}
