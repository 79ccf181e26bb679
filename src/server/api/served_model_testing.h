// models/tiny as the server holds it, without its weights.
#pragma once

#include <string>

#include "server/api/served_model.h"
#include "session/text_model_testing.h"

namespace dsv4::server {

// `tokenizer_path` names its tokenizer.json; `revision` its chat format.
inline ServedModel MakeTinyServedModel(const std::string& tokenizer_path, std::string_view revision) {
  ServedModel model(session::MakeTinyTextModel(tokenizer_path, revision));
  model.id = "tiny";
  model.context_length = 4096;
  return model;
}

}  // namespace dsv4::server
