// Path of models/tiny: the replay runs in tests/fuzz, libFuzzer in a folder of its own.
#pragma once

#include <filesystem>
#include <string>

namespace dsv4::testing {

inline std::string TinyModelFolder() {
  for (std::filesystem::path folder = std::filesystem::current_path(); folder.has_relative_path();
       folder = folder.parent_path()) {
    if (exists(folder / "models/tiny/tokenizer.json")) return folder / "models/tiny";
  }
  return "models/tiny";
}

}  // namespace dsv4::testing
