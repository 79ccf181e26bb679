// Options of a served model, of its answers and their memory, which `serve` and `batch` take.
#pragma once

#include <CLI/CLI.hpp>

#include "apps/serve/serve_command.h"

namespace dsv4::apps {

// With those of ranks.
void AddServedModelFlags(CLI::App& app, ServeOptions& options, ModelFlags& model);

}  // namespace dsv4::apps
