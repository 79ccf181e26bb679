// A folder of a fuzz target's process, gone with it.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace dsv4::testing {

class Folder {
 public:
  Folder() {
    // In memory where there is a place: a disk takes milliseconds for every file that is kept.
    const std::filesystem::path memory = "/dev/shm";
    std::string pattern =
        (is_directory(memory) ? memory : std::filesystem::temp_directory_path()) / "dsv4_XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  // The path of `name` in it, with these bytes.
  std::string With(std::string_view name, std::string_view bytes) const {
    const std::filesystem::path file = std::filesystem::path(path_) / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return file;
  }

 private:
  std::string path_;
};

}  // namespace dsv4::testing
