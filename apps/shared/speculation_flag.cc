// --speculation: parsed choice, drafters wanted, and the engine's options.
#include "apps/shared/speculation_flag.h"

#include <fmt/format.h>

#include "base/log.h"

namespace dsv4::apps {

Result<speculation::Choice> ParseSpeculation(const std::string& value, bool verifies) {
  const Result<speculation::Choice> choice = speculation::ParseChoice(value);
  if (!choice) return Error(InvalidArgument("--speculation: " + choice.error().message()));
  if (!verifies || !choice->any()) return choice;
  if (value == "auto") return speculation::Choice::Off();
  return Error(
      InvalidArgument(fmt::format("--speculation {}: --verify looks at steps of one token, which have no "
                                  "drafts; use one of the two",
                                  value)));
}

void WantDrafter(const speculation::Choice& choice, ModelFlags& flags) {
  flags.mtp = choice.mtp;
  flags.dspark = choice.dspark;
  flags.drafter_if_it_fits = choice.all();
}

engine::SpeculationOptions SpeculationOf(const speculation::Choice& choice, const model::Model& model) {
  engine::SpeculationOptions options;
  if (!choice.any()) return options;
  options.dspark = choice.dspark && model.has_dspark();
  options.mtp = choice.mtp && model.can_draft() && !model.has_dspark();
  const bool by_model = options.mtp || options.dspark;
  if ((choice.mtp || choice.dspark) && !by_model) {
    const std::string why = model.why_no_draft();
    const std::string line =
        fmt::format("speculation: no drafter of the model ({}); drafts quote the text alone",
                    why.empty() ? "the device has no room for it" : why);
    // `auto` takes what there is, so a missing drafter is no warning.
    choice.all() ? LogInfo(line) : LogWarning(line);
  }
  if (choice.suffix || !by_model) options.make_drafter = speculation::MakeSuffixDrafter;
  if (choice.always > 0) {
    options.most_tokens = choice.always;
    options.always = true;
  }
  return options;
}

}  // namespace dsv4::apps
