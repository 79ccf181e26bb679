// `dsv4 run`: one answer to a prompt, or a chat on the terminal when there is none.
#pragma once

#include <functional>

#include "apps/shared/run_options.h"

namespace dsv4::apps {

// Returns the process exit code. Tests seed faults in `make_backend`.
int RunRunCommand(const RunOptions& options,
                  const std::function<Result<ops::Backend>(const ModelFlags&)>& make_backend = MakeBackend);

}  // namespace dsv4::apps
