// LoadBar: what a person sees while a model loads: layers, and how fast they come to a device.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "apps/terminal/terminal.h"

namespace dsv4::model {
struct LoadProgress;
}

namespace dsv4::apps {

class LoadBar {
 public:
  explicit LoadBar(bool shown = true) : shown_(shown) {}
  // For LoadModel; used no longer than this lives.
  std::function<void(const model::LoadProgress&)> callback() {
    return [this](const model::LoadProgress& progress) {
      if (shown_) Update(progress);
    };
  }
  void Clear() { bar_.Clear(); }

 private:
  void Update(const model::LoadProgress& progress);

  const bool shown_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  ProgressBar bar_{"Loading"};
};

}  // namespace dsv4::apps
