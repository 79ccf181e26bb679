// The commit of the tree that the binary was built from.
#pragma once

namespace dsv4::apps {

// "d43e57ebe0"; "unknown" without git. Defined in a file that apps/command_line/commit.cmake makes.
extern const char* const kCommit;

}  // namespace dsv4::apps
