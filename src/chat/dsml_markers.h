// The marker sets of the completion parser's states. Internal. Source: chat-encoding.md 3.3 and 3.4.
#pragma once

#include <string>
#include <vector>

#include "chat/marker_set.h"
#include "chat/profile.h"

namespace dsv4::chat {

enum MarkerId : int {
  kThinkClose,
  kEndOfSentence,
  kBlockOpen,
  kLooseOpen,  // of a block, in a spelling of the wild: only if a call follows
  kBlockClose,
  kInvokeOpen,  // up to the tag's name: a header follows
  kInvokeClose,
  kParameterOpen,  // up to the tag's name: a header follows
  kParameterClose,
};

struct DsmlMarkers {
  struct Options {
    bool tools_active;
    bool promote_calls_in_reasoning;
    bool accept_damaged_tags;
  };
  DsmlMarkers(const ChatProfile& profile, const Options& options);

  MarkerSet reasoning, content, block, after_block, body, json_body, value;
  std::vector<std::string> invoke_opens;  // every accepted spelling, up to the tag's name
  std::vector<std::string> tag_starts;    // "<" and "</" with the DSML token, in every accepted spelling
};

}  // namespace dsv4::chat
