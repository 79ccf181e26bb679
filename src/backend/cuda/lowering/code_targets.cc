// Parser of CMake's list of architectures: the devices that a build has machine code or PTX for.
#include "backend/cuda/lowering/code_targets.h"

#include <fmt/format.h>

#include <charconv>

namespace dsv4::backend::cuda {
namespace {

bool ParseOne(std::string_view text, CodeTarget* target) {
  const size_t dash = text.find('-');
  const std::string_view kind = dash == std::string_view::npos ? "" : text.substr(dash + 1);
  const std::string_view name = text.substr(0, dash);
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), target->capability);
  const std::string_view suffix = name.substr(static_cast<size_t>(end - name.data()));
  if (error != std::errc() || (suffix != "" && suffix != "a" && suffix != "f")) return false;
  if (kind != "" && kind != "real" && kind != "virtual") return false;
  target->this_one_only = suffix == "a";
  target->machine_code = kind != "virtual";
  target->ptx = kind != "real" && suffix == "";
  return true;
}

}  // namespace

std::vector<CodeTarget> ParseCodeTargets(std::string_view architectures) {
  std::vector<CodeTarget> targets;
  while (!architectures.empty()) {
    const size_t comma = architectures.find(',');
    CodeTarget target;
    if (ParseOne(architectures.substr(0, comma), &target)) targets.push_back(target);
    if (comma == std::string_view::npos) break;
    architectures.remove_prefix(comma + 1);
  }
  return targets;
}

CodeFor FindCode(const std::vector<CodeTarget>& targets, int capability) {
  auto best = CodeFor::kNone;
  for (const CodeTarget& target : targets) {
    const bool same_major = target.capability / 10 == capability / 10;
    const bool runs =
        target.this_one_only ? target.capability == capability : target.capability <= capability;
    if (target.machine_code && same_major && runs) return CodeFor::kMachineCode;
    if (target.ptx && target.capability <= capability) best = CodeFor::kPtx;
  }
  return best;
}

std::string NameMachineCode(const std::vector<CodeTarget>& targets) {
  std::vector<std::string> names;
  for (const CodeTarget& target : targets) {
    if (target.machine_code)
      names.push_back(fmt::format("{}.{}", target.capability / 10, target.capability % 10));
  }
  if (names.empty()) return "none";
  std::string text = names.front();
  for (size_t i = 1; i < names.size(); ++i) text += (i + 1 == names.size() ? " and " : ", ") + names[i];
  return text;
}

}  // namespace dsv4::backend::cuda
