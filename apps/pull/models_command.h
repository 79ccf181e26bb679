// `dsv4 list`, `show` and `rm`: the models that were pulled to this machine.
#pragma once

#include <string>
#include <vector>

namespace dsv4::apps {

struct ListOptions {
  bool names_only = false;  // For completion.
  bool json = false;
};
int RunListCommand(const ListOptions& options);

struct ShowOptions {
  std::string name;
  bool json = false;
};
int RunShowCommand(const ShowOptions& options);

struct RemoveOptions {
  std::vector<std::string> names;
  bool all_revisions = false;
  bool dry_run = false;
};
int RunRemoveCommand(const RemoveOptions& options);

}  // namespace dsv4::apps
