// Standard error that neither throws nor blocks.
#include "base/error_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <mutex>

#include "base/line_writer.h"

namespace dsv4 {
namespace {

constexpr int kPatienceMs = 1000;

std::mutex g_mutex;
std::shared_ptr<LineWriter> g_background;  // Guarded by g_mutex.
std::atomic<bool> g_stuck = false;

}  // namespace

void WriteError(std::string_view text) noexcept {
  std::shared_ptr<LineWriter> background;
  {
    const std::lock_guard lock(g_mutex);
    background = g_background;
  }
  if (background != nullptr) return background->Write(text);
  g_stuck = !WriteQuietly(STDERR_FILENO, text, g_stuck ? 0 : kPatienceMs);
}

BackgroundErrors::BackgroundErrors() {
  // Its own descriptor: a thread that waits for the far end may outlive this.
  const int descriptor = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
  if (descriptor < 0) return;  // Standard error is closed.
  auto writer = std::make_shared<LineWriter>(descriptor, "dsv4: the log");
  const std::lock_guard lock(g_mutex);
  g_background = std::move(writer);
}

BackgroundErrors::~BackgroundErrors() {
  std::shared_ptr<LineWriter> last;
  const std::lock_guard lock(g_mutex);
  last.swap(g_background);
  // With the lock: a thread that writes now comes behind what is queued.
  last.reset();
}

}  // namespace dsv4
