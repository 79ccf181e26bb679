// Progress line of a load: layers and rate.
#include "apps/terminal/load_bar.h"

#include <fmt/format.h>

#include "apps/terminal/readable.h"
#include "model/checkpoint/weights.h"

namespace dsv4::apps {

void LoadBar::Update(const model::LoadProgress& progress) {
  std::string text = fmt::format("{}/{}", progress.layers, progress.num_layers);
  if (progress.bytes_placed > 0) {
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin_;
    text += " layers, " + LoadSpeed(progress.bytes_placed, time.count());
  }
  bar_.Update(progress.layers, progress.num_layers, text);
}

}  // namespace dsv4::apps
