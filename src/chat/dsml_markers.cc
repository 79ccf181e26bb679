#include "chat/dsml_markers.h"

#include <string_view>

namespace dsv4::chat {
namespace {

// The DSML token, and with `damaged` also its spellings with ASCII bars or one bar missing.
std::vector<std::string> Spellings(std::string_view dsml, bool damaged) {
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
  for (const std::string& dsml : Spellings(profile.dsml, options.accept_damaged_tags)) {
    const std::string open = "<" + dsml;
    const std::string close = "</" + dsml;
    tag_starts.push_back(open);
    tag_starts.push_back(close);

    const std::string block_open = open + std::string(profile.tool_calls) + ">";
    const std::string block_close = close + std::string(profile.tool_calls) + ">";
    const std::string invoke_open = open + std::string(profile.invoke);
    const std::string invoke_close = close + std::string(profile.invoke) + ">";
    AddWithLineFeeds(content, block_open, kBlockOpen);
    if (options.promote_calls_in_reasoning) AddWithLineFeeds(reasoning, block_open, kBlockOpen);
    if (options.accept_damaged_tags) {
      AddWithLineFeeds(content, invoke_open, kInvokeOpen);
      after_block.Add(invoke_open, kInvokeOpen);
    }
    after_block.Add(block_open, kBlockOpen);
    for (MarkerSet* set : {&block, &body}) {
      set->Add(invoke_open, kInvokeOpen);
      set->Add(block_close, kBlockClose);
    }
    body.Add(invoke_close, kInvokeClose);
    body.Add(open + std::string(profile.parameter), kParameterOpen);
    json_body.Add(invoke_close, kInvokeClose);
    value.Add(close + std::string(profile.parameter) + ">", kParameterClose);
  }
}

}  // namespace dsv4::chat
