// Completion parsers on any bytes. The strict one never fails otherwise than by a Status. The lenient one
// gives the same answer however the text is cut, with well-formed text and complete JSON arguments. Where the
// strict one accepts, both agree.
//
// Input: one byte of options, four bytes that seed the cuts, then the completion. Control bytes
// from 0x0E to 0x1F stand for the grammar's markers, so that the fuzzer meets them without a dictionary.
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/utf8.h"
#include "chat/completion_parser.h"
#include "chat/strict_parser.h"

namespace dsv4::chat {
namespace {

constexpr std::array<std::string_view, 18> kMarkers = {"<think>",
                                                       "</think>",
                                                       "<｜end▁of▁sentence｜>",
                                                       "\n\n<｜DSML｜tool_calls>\n",
                                                       "</｜DSML｜tool_calls>",
                                                       "<｜DSML｜invoke name=\"f\">\n",
                                                       "<｜DSML｜invoke",
                                                       "</｜DSML｜invoke>\n",
                                                       "<｜DSML｜parameter name=\"k\" string=\"true\">",
                                                       "<｜DSML｜parameter name=\"input\" string=\"false\">",
                                                       "<｜DSML｜parameter",
                                                       " name=\"",
                                                       "\" string=\"false\">",
                                                       "</｜DSML｜parameter>\n",
                                                       "<|DSML|tool_calls>",
                                                       "<DSML｜invoke name=\"f\">",
                                                       "｜DSML｜",
                                                       "{\"a\": 1}"};
constexpr unsigned kFirstMarkerByte = 0x0E;

std::string Expand(const uint8_t* data, size_t size) {
  std::string text;
  for (size_t i = 0; i < size; ++i) {
    if (data[i] >= kFirstMarkerByte && data[i] < kFirstMarkerByte + kMarkers.size()) {
      text += kMarkers[data[i] - kFirstMarkerByte];
    } else {
      text += static_cast<char>(data[i]);
    }
  }
  return text;
}

CollectedCompletion ParseInPieces(const ChatProfile& profile, std::string_view text,
                                  const ParserOptions& options, uint32_t seed) {
  std::minstd_rand random(seed);
  CompletionParser parser(profile, options);
  CompletionCollector collector;
  const auto add = [&](const std::vector<Delta>& deltas) {
    for (const Delta& delta : deltas) {
      DSV4_CHECK(FindInvalidUtf8(delta.text) == std::string_view::npos) << delta.text;
      collector.Add(delta);
    }
  };
  const size_t longest = 1 + seed % 40;
  while (!text.empty()) {
    const size_t size = std::min<size_t>(text.size(), random() % (longest + 1));
    add(parser.Feed(text.substr(0, size)));
    text.remove_prefix(size);
  }
  add(parser.Finish(EndCause::kLength));
  return collector.Take();
}

// The strict grammar finds the end of a name by what follows; the streaming one by its quote.
bool HasPlainNames(const ParsedCompletion& completion) {
  const auto plain = [](std::string_view name) {
    return name.find('"') == std::string_view::npos && name.find("DSML") == std::string_view::npos;
  };
  for (const ParsedCall& call : completion.tool_calls) {
    if (!plain(call.name)) return false;
    const auto arguments = ReadJson(call.arguments, "arguments");
    if (!arguments) return false;
    for (const auto& [key, value] : arguments->members()) {
      if (!plain(key)) return false;
    }
  }
  return true;
}

void FuzzOne(const uint8_t* data, size_t size) {
  if (size < 5) return;
  const uint8_t bits = data[0];
  uint32_t seed = 0;
  for (int i = 1; i <= 4; ++i) seed = seed << 8 | data[i];
  const std::string text = Expand(data + 5, size - 5);
  const ChatProfile& profile = *FindChatProfile(bits & 128 ? "v4.1" : "v4").value();

  ParserOptions options;
  options.starts_in_reasoning = bits & 1;
  options.tools_active = !(bits & 2);
  options.promote_calls_in_reasoning = !(bits & 4);
  options.accept_damaged_tags = bits & 8;
  options.show_failed_block = bits & 16;
  if (bits & 32) options.stop_strings = {"\n\n", "ab", "b<"};
  if (bits & 64) options.tools = {{"f", {"a", "k"}}};

  const CollectedCompletion whole = ParseLenient(profile, text, options, EndCause::kLength);
  const CollectedCompletion pieces = ParseInPieces(profile, text, options, seed);
  DSV4_CHECK(whole.message == pieces.message) << text;
  DSV4_CHECK(whole.finish_reason == pieces.finish_reason && whole.has_cut_call == pieces.has_cut_call &&
             whole.stop_string == pieces.stop_string)
      << text;
  for (const ParsedCall& call : whole.message.tool_calls) {
    const auto arguments = ReadJson(call.arguments, "arguments");
    // A value as deep as the reader allows is one level too deep inside the arguments.
    DSV4_CHECK(arguments ? arguments->is_object() : call.arguments.size() > kMaxJsonDepth) << call.arguments;
  }

  const ThinkingMode mode = bits & 1 ? ThinkingMode::kThinking : ThinkingMode::kChat;
  const auto strict = ParseStrict(profile, text, mode);
  // Values that are spliced in unchecked may differ.
  if (strict && HasPlainNames(*strict) && text.find("string=\"false\"") == std::string::npos &&
      FindInvalidUtf8(text) == std::string_view::npos) {
    const ParserOptions plain{.starts_in_reasoning = mode == ThinkingMode::kThinking};
    DSV4_CHECK(ParseLenient(profile, text, plain).message == *strict) << text;
  }
}

}  // namespace
}  // namespace dsv4::chat

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dsv4::chat::FuzzOne(data, size);
  return 0;
}
