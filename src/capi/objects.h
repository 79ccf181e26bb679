// Handles of dsv4.h, and how a function of it ends.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/log_sink.h"
#include "base/status.h"
#include "chat/delta.h"
#include "include/dsv4.h"
#include "kv/sequence_state.h"
#include "model/runtime/model.h"
#include "sampling/sampler.h"
#include "sampling/token_constraint.h"
#include "session/answer_reader.h"
#include "session/prompt.h"
#include "session/text_model.h"

struct dsv4_buffer {
  std::string bytes;
};

// Sessions, samplers and parsers share their model: handles may be freed in any order, as a collector of garbage does.
struct dsv4_model : std::enable_shared_from_this<dsv4_model> {
  // States and steps of one model belong to one thread at a time. Threads take turns in the order in which
  // they came: a plain mutex may let one of them have it over and over.
  class Turn {
   public:
    explicit Turn(const dsv4_model& model) : model_(model) {
      std::unique_lock lock(model_.mutex);
      const uint64_t ticket = model_.next_ticket++;
      model_.turn_came.wait(lock, [&] { return model_.now_serving == ticket; });
    }
    ~Turn() {
      {
        const std::lock_guard lock(model_.mutex);
        ++model_.now_serving;
      }
      model_.turn_came.notify_all();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    const dsv4_model& model_;
  };

  std::shared_ptr<dsv4_model> self;  // The caller's share, until dsv4_model_free.
  std::optional<dsv4::session::TextModel> text;
  std::unique_ptr<dsv4::model::Model> model;
  std::string backend_name;
  std::vector<uint8_t> allowed;
  dsv4::LogSink::Callback log;
  mutable std::mutex mutex;
  mutable std::condition_variable turn_came;
  mutable uint64_t next_ticket = 0;
  mutable uint64_t now_serving = 0;
};

struct dsv4_prompt {
  std::string text;
  dsv4::session::Prompt made;
  std::vector<dsv4::chat::JsonValue> tools;
};

struct dsv4_parser {
  std::shared_ptr<const dsv4_model> model;
  dsv4::session::AnswerReader reader;
  // kDone of an answer that its text has ended: it is delivered by dsv4_parser_finish.
  std::optional<dsv4::chat::Delta> end;
  bool finished = false;
};

struct dsv4_session {
  std::shared_ptr<dsv4_model> model;
  dsv4::kv::SequenceState state;
  std::vector<float> logits;
};

struct dsv4_sampler {
  std::shared_ptr<dsv4_model> model;
  dsv4::sampling::Sampler sampler;
  std::unique_ptr<dsv4::sampling::TokenConstraint> constraint;
};

namespace dsv4::capi {

dsv4_code End(const Status& status, dsv4_error* error);
// Status of the exception that is being handled.
Status Caught();

// Runs `body`, which returns a Status. No exception leaves it.
template <typename Body>
dsv4_code Guard(dsv4_error* error, const Body& body) {
  try {
    return End(body(), error);
  } catch (...) {
    return End(Caught(), error);
  }
}

}  // namespace dsv4::capi
