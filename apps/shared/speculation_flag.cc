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

void WantDraftBlock(const speculation::Choice& choice, ModelFlags& flags) {
  flags.mtp = choice.mtp;
  flags.mtp_if_it_fits = choice.mtp && choice.suffix;
}

engine::SpeculationOptions SpeculationOf(const speculation::Choice& choice, const model::Model& model) {
  engine::SpeculationOptions options;
  if (!choice.any()) return options;
  options.mtp = choice.mtp && model.can_draft();
  if (choice.mtp && !model.can_draft()) {
    const std::string& why = model.why_no_draft();
    LogInfo(fmt::format("speculation: no draft block ({}); drafts quote the text alone",
                        why.empty() ? "the device has no room for it" : why));
  }
  if (choice.suffix || !options.mtp) options.make_drafter = speculation::MakeSuffixDrafter;
  if (choice.always > 0) {
    options.most_tokens = choice.always;
    options.always = true;
  }
  return options;
}

}  // namespace dsv4::apps
