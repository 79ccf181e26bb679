#include "apps/shared/speculation_flag.h"

#include <fmt/format.h>

#include "base/log.h"

namespace dsv4::apps {

Result<speculation::Choice> ParseSpeculation(const std::string& value, bool verifies) {
  const Result<speculation::Choice> choice = speculation::ParseChoice(value);
  if (!choice) return Error(InvalidArgument("--speculation: " + choice.error().message()));
  if (!verifies || !choice->any()) return choice;
  if (value == "auto") return speculation::Choice{.suffix = false, .mtp = false};
  return Error(
      InvalidArgument(fmt::format("--speculation {}: --verify looks at steps of one token, which have no "
                                  "drafts; use one of the two",
                                  value)));
}

bool WantsMtp(const speculation::Choice& choice, const std::string& backend) {
  const bool automatic = choice.mtp && choice.suffix;
  return choice.mtp && !(automatic && backend == "cuda");
}

engine::SpeculationOptions SpeculationOf(const speculation::Choice& choice, const model::Model& model) {
  engine::SpeculationOptions options;
  if (!choice.any()) return options;
  options.mtp = choice.mtp && model.can_draft();
  if (choice.mtp && !model.can_draft()) {
    const std::string& why = model.why_no_draft();
    LogInfo(fmt::format("speculation: no draft block ({}); drafts quote the text alone",
                        why.empty() ? "auto leaves it out on a GPU, --speculation mtp loads it" : why));
  }
  if (choice.suffix || !options.mtp) options.make_drafter = speculation::MakeSuffixDrafter;
  if (choice.always > 0) {
    options.most_tokens = choice.always;
    options.always = true;
  }
  return options;
}

}  // namespace dsv4::apps
