// Folder of files that outlive a run, such as the chat's history.
#pragma once

#include <string>
#include <string_view>

namespace dsv4::apps {

// The variable's value where it is set (empty: nowhere), else `file` in dsv4/ below XDG_STATE_HOME or
// ~/.local/state; empty without a home.
std::string StatePath(const char* variable, std::string_view file);

}  // namespace dsv4::apps
