// `compare --ab`: variants of ops, each run and compared.
#include "apps/diagnose/diagnose_ab.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "apps/shared/choose_backend.h"
#include "backend/cpu/cpu_backend.h"
#include "diag/checks/ab_check.h"
#include "diag/live_run.h"

namespace dsv4::apps {
namespace {

constexpr std::string_view kEach = "each";

std::vector<std::string> Variants() {
  std::vector<std::string> names = {"reference"};
  for (const backend::cpu::Isa isa : backend::cpu::AvailableIsas())
    names.emplace_back(backend::cpu::IsaName(isa));
  return names;
}

Result<ops::Backend> MakeVariant(DiagnoseSession& session, const std::string& name) {
  const ModelFlags& flags = session.options().run.model;
  if (name == "reference") return session.suspects().make_backend(WithBackend(flags, name));
  for (const backend::cpu::Isa isa : backend::cpu::AvailableIsas()) {
    if (backend::cpu::IsaName(isa) == name)
      return backend::MakeCpuBackend({.num_threads = NumThreads(flags), .isa = isa});
  }
  return Error(Internal(fmt::format("variant {}: not of Variants()", name)));
}

struct Exchange {
  std::string op;
  std::string variant;
};

Result<std::vector<Exchange>> ParseAb(const std::vector<std::string>& texts) {
  std::vector<Exchange> exchanges;
  std::set<std::string> seen;
  const std::vector<std::string> variants = Variants();
  const std::vector<std::string>& ops = diag::ExchangeableOps();
  for (const std::string& text : texts) {
    const size_t sign = text.find('=');
    Exchange exchange{text.substr(0, sign), sign == std::string::npos ? "" : text.substr(sign + 1)};
    if (exchange.op != kEach && std::find(ops.begin(), ops.end(), exchange.op) == ops.end()) {
      return Error(OutOfRange(
          fmt::format("--ab {}: op '{}', wanted OP=VARIANT with one of {}, or {} for each of them in turn",
                      text, exchange.op, fmt::join(ops, ", "), kEach)));
    }
    if (std::find(variants.begin(), variants.end(), exchange.variant) == variants.end()) {
      return Error(OutOfRange(fmt::format("--ab {}: variant '{}', this machine has {}", text,
                                          exchange.variant, fmt::join(variants, ", "))));
    }
    if (!seen.insert(exchange.op).second)
      return Error(OutOfRange(fmt::format("--ab {}: the op a second time", text)));
    exchanges.push_back(std::move(exchange));
  }
  if (seen.contains(std::string(kEach)) && exchanges.size() > 1)
    return Error(OutOfRange("--ab each=VARIANT: exchanges every op by itself, so it stands alone"));
  return exchanges;
}

// "reference" for the reference backend, the tier for "cpu (tier)".
Status CheckDiffers(const ops::Backend& ours, const Exchange& exchange) {
  if (ours.name != exchange.variant && ours.name != fmt::format("cpu ({})", exchange.variant)) return {};
  return OutOfRange(
      fmt::format("--ab {}={}: the run under test uses that already", exchange.op, exchange.variant));
}

}  // namespace

Result<diag::CheckReport> RunAb(DiagnoseSession& session, const diag::CompareOptions& options) {
  DSV4_ASSIGN_OR_RETURN(const std::vector<Exchange> exchanges, ParseAb(session.options().ab));
  DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, session.LongPrompt());
  DSV4_ASSIGN_OR_RETURN(const diag::Subject subject, session.Model());
  std::map<std::string, ops::Backend> variants;
  for (const Exchange& exchange : exchanges) {
    DSV4_TRY(CheckDiffers(subject.backend.inner(), exchange));
    if (variants.contains(exchange.variant)) continue;
    DSV4_ASSIGN_OR_RETURN(variants[exchange.variant], MakeVariant(session, exchange.variant));
  }
  if (exchanges[0].op == kEach) {
    if (session.options().shared_inputs)
      return Error(OutOfRange(
          "--ab each: looks at the logits alone; --shared wants one op: --ab OP=VARIANT --shared"));
    return diag::CheckEachOp(subject, tokens, variants.at(exchanges[0].variant), exchanges[0].variant,
                             options.bound);
  }

  // The other run: the same backend and weights, other ops.
  const ModelFlags& flags = session.options().run.model;
  DSV4_ASSIGN_OR_RETURN(ops::Backend backend, session.suspects().make_backend(flags));
  diag::HookedBackend exchanging(std::move(backend));
  diag::OpVariants exchanged;
  std::string names;
  for (const Exchange& exchange : exchanges) {
    exchanged[exchange.op] = &variants.at(exchange.variant);
    names += fmt::format("{}{} of {}", names.empty() ? "" : ", ", exchange.op, exchange.variant);
  }
  DSV4_ASSIGN_OR_RETURN(diag::OpHooks hooks, diag::ExchangeOps(exchanging.inner(), exchanged));
  const diag::HookedBackend::Scope scope(exchanging, std::move(hooks));
  // The run has hooks of its own.
  diag::HookedBackend watched(exchanging.backend());
  DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<model::Model> model,
                        LoadModel(flags, session.source(), watched.backend(), {}, {}, &exchanging.inner()));
  diag::LiveRun run({*model, watched}, tokens);
  DSV4_ASSIGN_OR_RETURN(diag::CheckReport report, diag::CheckCompare(subject, tokens, run, options));
  report.evidence.push_back(fmt::format("the other run: the same backend with {}", names));
  if (report.verdict == diag::Verdict::kPass) {
    report.rules_out = {fmt::format("a difference between the two runs from {}", names)};
  }
  return report;
}

}  // namespace dsv4::apps
