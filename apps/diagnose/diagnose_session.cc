// Text, model, ids and prompt of a diagnose run, read when first asked for.
#include "apps/diagnose/diagnose_session.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "apps/shared/chat_file.h"
#include "apps/terminal/load_bar.h"
#include "base/read_file.h"
#include "engine/engine.h"

namespace dsv4::apps {

Result<int32_t> FirstToken(model::Model& model, const std::vector<int32_t>& prompt,
                           const std::vector<uint8_t>& allowed, const sampling::SamplingParams& params) {
  engine::Engine engine(model, engine::EngineOptions{}, allowed);
  DSV4_ASSIGN_OR_RETURN(const engine::RequestId id,
                        engine.Submit({.prompt = prompt, .sampling = params, .max_tokens = 1}));
  std::optional<int32_t> token;
  while (!engine.idle()) {
    for (const engine::Event& event : engine.Step()) {
      if (event.request != id) continue;
      if (event.kind == engine::Event::Kind::kToken) token = event.token.id;
      if (event.kind == engine::Event::Kind::kFinished && !event.status.ok()) return Error(event.status);
    }
  }
  if (!token) return Error(Internal("the engine ended without a token"));
  return *token;
}

Result<const TextSubject*> DiagnoseSession::Text() {
  if (!text_) {
    DSV4_ASSIGN_OR_RETURN(TextSubject text, LoadTextSubject(options_.run, source_));
    text_ = std::make_unique<TextSubject>(std::move(text));
  }
  return text_.get();
}

Result<diag::Subject> DiagnoseSession::Model() {
  if (!model_) {
    DSV4_ASSIGN_OR_RETURN(ops::Backend backend, suspects_.make_backend(options_.run.model));
    backend_ = std::make_unique<diag::HookedBackend>(std::move(backend));
    LoadBar bar;
    ModelFlags flags = options_.run.model;
    flags.mtp = options_.check == "draft" && options_.draft != "dspark";
    flags.dspark = options_.check == "draft" && options_.draft != "mtp";
    DSV4_ASSIGN_OR_RETURN(
        model_, LoadModel(flags, source_, backend_->backend(), bar.callback(), {}, &backend_->inner()));
    bar.Clear();
  }
  return diag::Subject{*model_, *backend_};
}

Status DiagnoseSession::CheckIds(const std::vector<int32_t>& ids, const std::string& what) {
  DSV4_ASSIGN_OR_RETURN_STATUS(const diag::Subject subject, Model());
  const int64_t vocab_size = subject.model.config().vocab_size;
  for (const int32_t id : ids) {
    if (id >= 0 && id < vocab_size) continue;
    return InvalidArgument(fmt::format("{}: token id {}, wanted 0..{}", what, id, vocab_size - 1));
  }
  return {};
}

Result<std::vector<int32_t>> DiagnoseSession::Prompt() {
  std::vector<int32_t> ids;
  if (options_.tokens_path.empty()) {
    DSV4_ASSIGN_OR_RETURN(const TextSubject* text, Text());
    ids = text->ids;
  } else {
    DSV4_ASSIGN_OR_RETURN(const std::string file, ReadFile(options_.tokens_path, FileKind::kAny));
    DSV4_ASSIGN_OR_RETURN(ids, ParseTokenIds(file, options_.tokens_path));
  }
  DSV4_TRY(CheckIds(ids, options_.tokens_path.empty() ? "prompt" : options_.tokens_path));
  return ids;
}

Result<std::vector<int32_t>> DiagnoseSession::LongPrompt() {
  DSV4_ASSIGN_OR_RETURN(std::vector<int32_t> ids, Prompt());
  const size_t period = ids.size();
  while (static_cast<int64_t>(ids.size()) < options_.min_tokens) ids.push_back(ids[ids.size() - period]);
  return ids;
}

}  // namespace dsv4::apps
