// Answers a file of requests: the parts of a server without its sockets.
#include "apps/batch/batch_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "apps/terminal/terminal.h"
#include "base/error_output.h"
#include "base/json.h"
#include "base/text.h"
#include "engine/engine_thread.h"
#include "server/batch/batch_files.h"
#include "server/batch/run_batch.h"
#include "server/service.h"

namespace dsv4::apps {
namespace {

// A log has a line so often, where no terminal shows the bar.
constexpr double kSecondsBetweenLines = 30.0;

class Progress {
 public:
  Progress(const server::BatchFiles& files, const engine::EngineThread& engine)
      : files_(files), engine_(engine), had_(files.num_answered()) {}

  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }
  double tokens() const { return static_cast<double>(engine_.stats().num_output_tokens); }
  std::string Text() const {
    std::string text = fmt::format("{}/{} answered", files_.num_answered(), files_.num_requests());
    if (files_.num_failed() > 0) text += fmt::format(", {}", Counted(files_.num_failed(), "error"));
    return text + fmt::format(", {:.0f} tok/s", tokens() / std::max(seconds(), 0.001));
  }
  void Update() {
    bar_.Update(files_.num_answered() - had_, files_.num_requests() - had_, Text());
    if (StderrIsTerminal() || seconds() - said_ < kSecondsBetweenLines) return;
    said_ = seconds();
    PrintError("{}\n", Text());
  }
  void Clear() { bar_.Clear(); }

 private:
  using Clock = std::chrono::steady_clock;
  const server::BatchFiles& files_;
  const engine::EngineThread& engine_;
  const int64_t had_;
  const Clock::time_point begin_ = Clock::now();
  double said_ = 0;
  ProgressBar bar_{"batch"};
};

int Answer(const BatchOptions& options, server::BatchFiles& files, const ServedEngine& served) {
  const InterruptScope interrupts;
  Progress progress(files, served.engine);
  bool interrupted = false;
  const double busy_before = served.busy_seconds();
  const Status status = server::RunBatch(
      {.ask = [&](server::HttpRequest request) { return served.service.Handle(std::move(request)); },
       .next = [&] { return files.Next(); },
       .put =
           [&](const server::BatchAnswer& answer) {
             DSV4_RETURN_IF_ERROR(files.Put(answer));
             progress.Update();
             return Status();
           },
       .stop =
           [&] {
             if (InterruptScope::Take()) interrupted = true;
             return interrupted || served.is_lost();
           },
       .in_flight = options.in_flight > 0 ? options.in_flight : 2 * int64_t{served.places}});
  progress.Clear();
  const Status flushed = files.Flush();
  if (interrupted) {
    PrintError("{}: stopped; the same command goes on from there\n", progress.Text());
    return kExitInterrupted;
  }
  for (const Status& each : {status, flushed})
    if (!each.ok()) return Fail(each.WithContext("batch"), kExitRunFailed);
  const double seconds = progress.seconds();
  const double busy = served.busy_seconds() - busy_before;
  const engine::EngineStats stats = served.engine.stats();
  if (options.json) {
    const Json json = {{"requests", files.num_requests()},
                       {"answered", files.num_answered()},
                       {"errors", files.num_failed()},
                       {"seconds", seconds},
                       {"engine_seconds", busy},
                       {"steps", stats.num_steps},
                       {"prompt_tokens", stats.num_prompt_tokens},
                       {"cached_tokens", stats.num_cached_tokens},
                       {"output_tokens", stats.num_output_tokens}};
    fmt::print("{}\n", json.dump());
  } else {
    PrintError("{} in {}; the engine worked {:.1f} % of the time\n", progress.Text(), ShortDuration(seconds),
               100.0 * busy / std::max(seconds, 1e-6));
  }
  return files.num_failed() > 0 ? kExitRunFailed : kExitOk;
}

}  // namespace

int RunBatchCommand(const BatchOptions& options) {
  Result<server::BatchFiles> files = server::BatchFiles::Open(options.input, options.output);
  if (!files) return Fail(files.error(), kExitBadInput);
  if (files->num_answered() > 0) {
    PrintError("{}: {} of {} their answers\n", options.output, files->num_answered(),
               Counted(files->num_requests(), "request has", "requests have"));
  }
  if (files->num_answered() == files->num_requests())
    return files->num_failed() > 0 ? kExitRunFailed : kExitOk;
  ServeOptions serve = options.serve;
  serve.run = [&](const ServedEngine& served) { return Answer(options, *files, served); };
  return RunServeCommand(serve);
}

}  // namespace dsv4::apps
