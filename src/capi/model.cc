// Models: opening and asking.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/gpu_survey.h"
#include "backend/reference/reference_backend.h"
#include "base/log.h"
#include "base/text.h"
#include "capi/objects.h"
#include "io/checkpoint.h"
#include "model/arch/architecture.h"
#include "model/planning/memory_plan.h"
#include "ops/op_table.h"
#include "session/token_classes.h"

namespace dsv4::capi {
namespace {

// The backend that "auto" is: a usable GPU where the model has room on it, else the CPU. A warning says why
// not.
struct Choice {
  std::string_view name = "cpu";
  int device = 0;
};

Choice Choose(const dsv4_model_options& options, const std::string& directory,
              const model::ModelOptions& of_model) {
  const backend::GpuSurvey survey = backend::SurveyGpus();
  const std::string gpus = backend::NameGpus(survey);
  const std::optional<int> first = backend::FirstUsable(survey);
  if (!first) {
    if (!gpus.empty()) LogWarning(fmt::format("{}: idle, {}", gpus, backend::WhyNoGpu(survey)));
    return {};
  }
  const Choice gpu{.name = "cuda", .device = options.device > 0 ? options.device : *first};
  const Result<backend::CudaRoom> room = backend::RoomOf(gpu.device);
  const Result<model::ModelConfig> config = model::LoadModelConfig(directory);
  const auto checkpoint = io::Checkpoint::Open(directory);
  if (!room || !config || !checkpoint) return gpu;  // Its load says what is wrong.
  const Result<model::MemoryPlan> plan = model::PlanMemory(*config, *checkpoint, of_model, {});
  if (!plan || plan->total() + room->scratch <= room->free) return gpu;
  LogWarning(fmt::format("{}: idle, {:.2f} GB are free and {:.2f} GB are wanted: the model runs on the CPU",
                         gpus, static_cast<double>(room->free) / 1e9,
                         static_cast<double>(plan->total() + room->scratch) / 1e9));
  return {};
}

Result<ops::Backend> MakeBackend(std::string_view name, int threads, int device) {
  if (name == "cpu") return backend::MakeCpuBackend({.num_threads = threads, .isa = {}, .cpus_of_nodes = {}});
  if (name == "reference") return backend::MakeReferenceBackend(threads);
  if (name == "cuda") {
    backend::CudaOptions options;
    options.device = device;
    return backend::MakeCudaBackend(options);
  }
  return Error(InvalidArgument(
      fmt::format("dsv4_model_options.backend: got '{}', wanted auto, cpu, reference or cuda", name)));
}

Status Open(const dsv4_model_options& options, dsv4_model& opened) {
  if (options.path == nullptr)
    return InvalidArgument("dsv4_model_options.path: got NULL, wanted a directory");
  if (options.threads < 0 || options.device < 0 || options.max_layers < 0) {
    return InvalidArgument(
        fmt::format("dsv4_model_options: got threads {}, device {}, max_layers {}, wanted >= 0",
                    options.threads, options.device, options.max_layers));
  }
  const std::string_view numerics = options.numerics != nullptr ? options.numerics : "release";
  if (numerics != "release" && numerics != "plain") {
    return InvalidArgument(
        fmt::format("dsv4_model_options.numerics: got '{}', wanted release or plain", numerics));
  }
  const std::string directory = options.path;
  DSV4_ASSIGN_OR_RETURN_STATUS(
      opened.text, session::TextModel::Load(directory, options.revision != nullptr ? options.revision : ""));
  const int threads = options.threads > 0
                          ? options.threads
                          : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  model::ModelOptions of_model;
  of_model.numerics = numerics == "plain" ? model::Numerics::kPlain : model::Numerics::kRelease;
  of_model.max_layers = options.max_layers;
  Choice choice{.name = options.backend != nullptr ? options.backend : "auto", .device = options.device};
  if (choice.name == "auto") choice = Choose(options, directory, of_model);
  DSV4_ASSIGN_OR_RETURN_STATUS(const ops::Backend backend, MakeBackend(choice.name, threads, choice.device));
  opened.backend_name = backend.name;
  if (choice.name == "cuda" && !backend::kCudaPacksRows) of_model.cache_rows = model::CacheRows::kWide;
  if (options.on_progress != nullptr) {
    of_model.progress = [&options](const model::LoadProgress& so_far) -> Status {
      if (options.on_progress(so_far.layers, so_far.num_layers, options.user) == 0) return {};
      return Cancelled(fmt::format("{}: on_progress ended the load after {} of {}", options.path,
                                   so_far.layers, Counted(so_far.num_layers, "layer")));
    };
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(const model::ModelConfig config, model::LoadModelConfig(directory));
  if (config.engram.has_value()) {
    DSV4_ASSIGN_OR_RETURN_STATUS(
        of_model.token_classes,
        session::TokenClassesOf(directory, config.vocab_size, config.engram->compressed_vocab_size));
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(opened.model, model::Model::Load(directory, backend, of_model));
  DSV4_RETURN_IF_ERROR(opened.text->SetVocabSize(opened.model->config().vocab_size, directory));
  opened.allowed = opened.text->AllowedTokens();
  return {};
}

}  // namespace

dsv4_code End(const Status& status, dsv4_error* error) {
  const auto code = static_cast<dsv4_code>(status.code());
  if (error == nullptr) return code;
  error->code = code;
  const std::string& message = status.message();
  size_t size = std::min(message.size(), sizeof(error->message) - 1);
  // A cut never leaves a part of a character.
  if (size < message.size()) {
    while (size > 0 && (static_cast<unsigned char>(message[size]) & 0xC0U) == 0x80U) --size;
  }
  std::memcpy(error->message, message.data(), size);
  error->message[size] = '\0';
  return code;
}

Status Caught() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("out of memory");
  } catch (const std::exception& thrown) {
    return Internal(thrown.what());
  } catch (...) {
    return Internal("an exception of unknown kind");
  }
}

}  // namespace dsv4::capi

using dsv4::InvalidArgument;
using dsv4::Status;
using dsv4::capi::Guard;

static_assert(DSV4_INTERNAL == static_cast<int>(dsv4::StatusCode::kInternal));

uint32_t dsv4_abi(void) { return DSV4_ABI; }
const char* dsv4_version(void) { return DSV4_VERSION; }

const void* dsv4_buffer_data(const dsv4_buffer* buffer) { return buffer->bytes.data(); }
size_t dsv4_buffer_size(const dsv4_buffer* buffer) { return buffer->bytes.size(); }
void dsv4_buffer_free(dsv4_buffer* buffer) { delete buffer; }

void dsv4_model_options_init(dsv4_model_options* options) {
  *options = {};
  options->size = sizeof(*options);
}

dsv4_code dsv4_model_open(const dsv4_model_options* options, dsv4_model** model, dsv4_error* error) {
  return Guard(error, [&]() -> Status {
    if (options == nullptr || model == nullptr)
      return InvalidArgument("dsv4_model_open: got NULL for options or model");
    *model = nullptr;
    if (options->size != sizeof(*options)) {
      return InvalidArgument(
          fmt::format("dsv4_model_options.size: got {}, wanted {}", options->size, sizeof(*options)));
    }
    auto opened = std::make_shared<dsv4_model>();
    if (options->on_log != nullptr) {
      opened->log = [log = options->on_log, user = options->user](dsv4::LogLevel level,
                                                                  const std::string& message) {
        if (level >= dsv4::LogLevel::kInfo) log(static_cast<int32_t>(level), message.c_str(), user);
      };
    }
    const dsv4::LogSink sink(opened->log);
    DSV4_RETURN_IF_ERROR(dsv4::capi::Open(*options, *opened));
    opened->self = opened;
    *model = opened.get();
    return {};
  });
}

void dsv4_model_free(dsv4_model* model) {
  if (model != nullptr) const std::shared_ptr<dsv4_model> share = std::move(model->self);
}
const char* dsv4_model_backend(const dsv4_model* model) { return model->backend_name.c_str(); }
int64_t dsv4_model_vocab_size(const dsv4_model* model) { return model->model->config().vocab_size; }
int64_t dsv4_model_context_length(const dsv4_model* model) {
  return model->model->config().max_position_embeddings;
}
int64_t dsv4_model_max_tokens(const dsv4_model* model) {
  return model->text->card.max_new_tokens.value_or(0);
}
int32_t dsv4_model_is_stop(const dsv4_model* model, int32_t token) {
  return model->text->stop_set.Contains(token) ? 1 : 0;
}
