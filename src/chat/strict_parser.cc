// Parser that accepts a completion only in the exact form of the release, with the first fault named.
#include "chat/strict_parser.h"

#include <fmt/format.h>

#include <initializer_list>
#include <set>

namespace dsv4::chat {
namespace {

constexpr std::string_view kLineEnd = ">\n";

class StrictParser {
 public:
  StrictParser(const ChatProfile& profile, std::string_view text)
      : profile_(profile),
        text_(text),
        block_(std::string("\n\n") + profile.OpenTag(profile.tool_calls)),
        block_end_(profile.CloseTag(profile.tool_calls) + ">"),
        invoke_(profile.OpenTag(profile.invoke)),
        invoke_end_(profile.CloseTag(profile.invoke)),
        parameter_(profile.OpenTag(profile.parameter)),
        parameter_end_(profile.CloseTag(profile.parameter)) {}

  Result<ParsedCompletion> Parse(ThinkingMode mode) {
    ParsedCompletion completion;
    if (mode == ThinkingMode::kThinking) {
      const Found found = ReadTo({profile_.think_close, block_});
      if (found.marker != profile_.think_close) return Fail("reasoning is not closed");
      completion.reasoning_content = found.before;
    }
    const Found found = ReadTo({profile_.eos, block_});
    if (found.marker.empty()) return Fail("no end of sentence");
    completion.content = found.before;
    if (found.marker == block_) {
      DSV4_TRY(ParseBlock(completion));
      if (pos_ < text_.size()) {
        const Found end = ReadTo({profile_.eos});
        if (end.marker.empty() || !end.before.empty()) return Fail("text after the tool block");
      }
    }
    if (pos_ != text_.size()) return Fail("text after the end of sentence");
    DSV4_TRY(CheckNoMarkers(completion.reasoning_content, "reasoning"));
    DSV4_TRY(CheckNoMarkers(completion.content, "content"));
    return completion;
  }

 private:
  struct Found {
    std::string_view before;
    std::string_view marker;  // empty: none, and the position stays
  };

  tl::unexpected<Status> Fail(std::string_view what) const { return Error(Bad(what)); }
  Status Bad(std::string_view what) const {
    return InvalidArgument(fmt::format("completion: {} at byte {}", what, pos_));
  }

  // Reads past the first of the markers.
  Found ReadTo(std::initializer_list<std::string_view> markers) {
    size_t best = std::string_view::npos;
    std::string_view marker;
    for (const std::string_view candidate : markers) {
      const size_t at = text_.find(candidate, pos_);
      if (at < best) {
        best = at;
        marker = candidate;
      }
    }
    if (marker.empty()) return {};
    const Found found{text_.substr(pos_, best - pos_), marker};
    pos_ = best + marker.size();
    return found;
  }

  Status ParseBlock(ParsedCompletion& completion) {
    while (true) {
      const Found found = ReadTo({invoke_, block_end_});
      if (found.marker.empty()) return Bad("tool block is not closed");
      if (found.before != kLineEnd) return Bad("something else than '>' and a line feed before a tag");
      if (found.marker == block_end_) return {};
      DSV4_RETURN_IF_ERROR(ParseInvoke(completion));
    }
  }

  Status ParseInvoke(ParsedCompletion& completion) {
    Found found = ReadTo({parameter_, invoke_end_});
    if (found.marker.empty()) return Bad("invoke is not closed");
    ParsedCall call;
    DSV4_RETURN_IF_ERROR(ParseInvokeHeader(found, call.name));
    std::set<std::string, std::less<>> seen;
    call.arguments = "{";
    while (found.marker == parameter_) {
      DSV4_RETURN_IF_ERROR(ParseParameter(call, seen));
      found = ReadTo({parameter_, invoke_end_});
      if (found.marker.empty()) return Bad("invoke is not closed");
      if (found.before != kLineEnd) return Bad("something else than '>' and a line feed after a parameter");
    }
    call.arguments += '}';
    completion.tool_calls.push_back(std::move(call));
    return {};
  }

  // White space, name="...">, a line feed, and one more where there are no parameters.
  Status ParseInvokeHeader(const Found& header, std::string& name) const {
    std::string_view text = header.before;
    constexpr std::string_view kName = "name=\"";
    constexpr std::string_view kEnd = "\">\n";
    const size_t start = text.find_first_not_of(" \t\n\r\f\v");
    if (start == std::string_view::npos || !text.substr(start).starts_with(kName))
      return Bad("invoke without a name");
    text.remove_prefix(start + kName.size());
    if (header.marker == invoke_end_ && text.ends_with("\">\n\n")) text.remove_suffix(1);
    if (!text.ends_with(kEnd)) return Bad("invoke header is malformed");
    text.remove_suffix(kEnd.size());
    name = text;
    return {};
  }

  Status ParseParameter(ParsedCall& call, std::set<std::string, std::less<>>& seen) {
    constexpr std::string_view kName = " name=\"";
    constexpr std::string_view kString = "\" string=\"true\">";
    constexpr std::string_view kJson = "\" string=\"false\">";
    const Found found = ReadTo({parameter_end_});
    if (found.marker.empty()) return Bad("parameter is not closed");
    std::string_view text = found.before;
    if (!text.starts_with(kName)) return Bad("parameter without a name");
    text.remove_prefix(kName.size());
    const size_t as_string = text.find(kString);
    const size_t as_json = text.find(kJson);
    const bool is_string = as_string < as_json;
    const size_t name_size = is_string ? as_string : as_json;
    if (name_size == std::string_view::npos) return Bad("parameter header is malformed");
    const std::string_view name = text.substr(0, name_size);
    const std::string_view value = text.substr(name_size + (is_string ? kString : kJson).size());
    if (!seen.emplace(name).second) return Bad(fmt::format("parameter '{}' is given twice", name));
    if (call.arguments.size() > 1) call.arguments += ", ";
    call.arguments.append(QuoteJson(name))
        .append(": ")
        .append(is_string ? QuoteJson(value) : std::string(value));
    return {};
  }

  Status CheckNoMarkers(std::string_view text, std::string_view what) const {
    for (const std::string_view marker :
         {profile_.bos, profile_.eos, profile_.think_open, profile_.think_close, profile_.dsml}) {
      if (text.find(marker) != std::string_view::npos) {
        return InvalidArgument(fmt::format("completion: {} contains {}", what, marker));
      }
    }
    return {};
  }

  const ChatProfile& profile_;
  const std::string_view text_;
  size_t pos_ = 0;
  const std::string block_, block_end_, invoke_, invoke_end_, parameter_, parameter_end_;
};

}  // namespace

Result<ParsedCompletion> ParseStrict(const ChatProfile& profile, std::string_view text, ThinkingMode mode) {
  return StrictParser(profile, text).Parse(mode);
}

}  // namespace dsv4::chat
