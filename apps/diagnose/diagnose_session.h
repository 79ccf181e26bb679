// Subject of the checks of one `dsv4 diagnose`, read once, when the first of them asks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/diagnose/diagnose_command.h"
#include "apps/diagnose/diagnose_text.h"
#include "apps/shared/model_flags.h"
#include "apps/shared/model_source.h"
#include "diag/subject.h"

namespace dsv4::apps {

// The first token that the engine samples for `prompt`; `allowed` as in sampling/sampler.h.
Result<int32_t> FirstToken(model::Model& model, const std::vector<int32_t>& prompt,
                           const std::vector<uint8_t>& allowed, const sampling::SamplingParams& params);

// Parts under suspicion. Tests seed faults here; everything else of a diagnosis is then the real one.
struct DiagnoseSuspects {
  std::function<Result<ops::Backend>(const ModelFlags&)> make_backend = MakeBackend;
  decltype(FirstToken)* first_token = FirstToken;
};

class DiagnoseSession {
 public:
  // `options` outlive the session.
  DiagnoseSession(const DiagnoseOptions& options, DiagnoseSuspects suspects, ModelSource source)
      : options_(options), suspects_(std::move(suspects)), source_(std::move(source)) {}

  const DiagnoseOptions& options() const { return options_; }
  const DiagnoseSuspects& suspects() const { return suspects_; }
  const ModelSource& source() const { return source_; }

  Result<const TextSubject*> Text();
  Result<diag::Subject> Model();
  // With its tier once the model is loaded, as asked for before that.
  std::string BackendName() const { return backend_ ? backend_->inner().name : options_.run.model.backend; }
  // InvalidArgument for an id that the model does not have; `what` names where it stood.
  Status CheckIds(const std::vector<int32_t>& ids, const std::string& what);
  // The ids of --tokens, else of the conversation.
  Result<std::vector<int32_t>> Prompt();
  // The same, repeated up to --min-tokens: compressed layers have little to see in a short prompt.
  Result<std::vector<int32_t>> LongPrompt();

 private:
  const DiagnoseOptions& options_;
  DiagnoseSuspects suspects_;
  ModelSource source_;
  std::unique_ptr<TextSubject> text_;
  std::unique_ptr<diag::HookedBackend> backend_;
  std::unique_ptr<model::Model> model_;
};

}  // namespace dsv4::apps
