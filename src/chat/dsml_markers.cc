// Spellings of DSML tags, exact and as models get them wrong, as marker sets for each parser state.
#include "chat/dsml_markers.h"

#include <string_view>

namespace dsv4::chat {
namespace {

// The DSML token, and with `damaged` also its spellings with ASCII bars or one bar missing.
std::vector<std::string> MarkerSpellings(std::string_view dsml, bool damaged) {
  std::vector<std::string> spellings = {std::string(dsml)};
  if (!damaged) return spellings;
  constexpr std::string_view kBar = "｜";
  std::string_view name = dsml;
  if (name.starts_with(kBar)) name.remove_prefix(kBar.size());
  if (name.ends_with(kBar)) name.remove_suffix(kBar.size());
  for (const std::string_view left : {kBar, std::string_view("|"), std::string_view()}) {
    for (const std::string_view right : {kBar, std::string_view("|"), std::string_view()}) {
      std::string spelling = std::string(left).append(name).append(right);
      if ((!left.empty() || !right.empty()) && spelling != dsml) spellings.push_back(std::move(spelling));
    }
  }
  return spellings;
}

// Names that models give the block of calls, beside its own.
constexpr std::string_view kLooseNames[] = {"tool_calls",    " tool_calls",    "calls",     " calls",
                                            "toolcalls",     "function_calls", "tool_call", "toolcall",
                                            "functioncalls", "function_call"};

// Up to two line feeds in front of the opener are syntax, not text.
void AddWithLineFeeds(MarkerSet& set, const std::string& tag, int id) {
  for (const std::string_view line_feeds : {"\n\n", "\n", ""}) set.Add(std::string(line_feeds) + tag, id);
}

}  // namespace

DsmlMarkers::DsmlMarkers(const ChatProfile& profile, const Options& options) {
  for (MarkerSet* set : {&reasoning, &content}) set->Add(std::string(profile.think_close), kThinkClose);
  for (MarkerSet* set : {&reasoning, &content, &block, &after_block, &body}) {
    set->Add(std::string(profile.eos), kEndOfSentence);
  }
  if (!options.tools_active) return;
  for (const std::string& dsml : MarkerSpellings(profile.dsml, options.accept_damaged_tags)) {
    const std::string open = "<" + dsml;
    const std::string close = "</" + dsml;
    tag_starts.push_back(open);
    tag_starts.push_back(close);

    const std::string block_open = open + std::string(profile.tool_calls) + ">";
    const std::string block_close = close + std::string(profile.tool_calls) + ">";
    const int opener = dsml == profile.dsml ? kBlockOpen : kLooseOpen;
    const auto add_to_text = [&](const std::string& tag, int id) {
      AddWithLineFeeds(content, tag, id);
      if (options.promote_calls_in_reasoning) AddWithLineFeeds(reasoning, tag, id);
    };
    add_to_text(block_open, opener);
    after_block.Add(block_open, kBlockOpen);
    for (MarkerSet* set : {&block, &body}) set->Add(block_close, kBlockClose);
    if (options.accept_damaged_tags) {
      for (const std::string_view name : kLooseNames) {
        add_to_text(open + std::string(name) + ">", kLooseOpen);
        after_block.Add(open + std::string(name) + ">", kBlockOpen);
        for (MarkerSet* set : {&block, &body}) set->Add(close + std::string(name) + ">", kBlockClose);
      }
    }
    // The revision's own spelling of names, and the one with or without a blank in front that is not its own.
    for (const bool is_own : {true, false}) {
      if (!is_own && !options.accept_damaged_tags) continue;
      const auto tag = [&](const std::string& start, std::string_view name) {
        if (is_own) return start + std::string(name);
        return name.starts_with(' ') ? start + std::string(name.substr(1)) : start + " " + std::string(name);
      };
      const std::string invoke_open = tag(open, profile.invoke);
      const std::string invoke_close = tag(close, profile.invoke) + ">";
      invoke_opens.push_back(invoke_open);
      if (options.accept_damaged_tags) {
        add_to_text(invoke_open, kInvokeOpen);
        after_block.Add(invoke_open, kInvokeOpen);
      }
      for (MarkerSet* set : {&block, &body}) set->Add(invoke_open, kInvokeOpen);
      body.Add(invoke_close, kInvokeClose);
      body.Add(tag(open, profile.parameter), kParameterOpen);
      json_body.Add(invoke_close, kInvokeClose);
      value.Add(tag(close, profile.parameter) + ">", kParameterClose);
    }
  }
}

}  // namespace dsv4::chat
