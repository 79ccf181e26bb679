// Helpers that tests of checkpoints share: directories that vanish, and a checkpoint in memory. A test can
// rename, drop, reshape or damage its tensors before writing it again.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/temporary_directory_testing.h"
#include "io/checkpoint.h"
#include "io/safetensors_writer.h"
#include "model/arch/architecture.h"
#include "model/checkpoint/weights.h"
#include "model/config/config.h"
#include "model/synthetic/synthetic.h"

namespace dsv4::model {

struct EditableTensor {
  io::TensorSpec spec;
  std::string bytes;
};

struct EditableCheckpoint {
  std::string config_json;
  std::vector<EditableTensor> tensors;

  static EditableCheckpoint Read(const std::string& directory) {
    EditableCheckpoint read;
    read.config_json = *io::ReadTextFile(directory + "/config.json");
    const auto checkpoint = io::Checkpoint::Open(directory);
    for (const io::StoredTensor& tensor : (*checkpoint)->tensors()) {
      read.tensors.push_back(
          {{tensor.name, *tensor.dtype, tensor.dims},
           std::string(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size())});
    }
    return read;
  }

  static EditableCheckpoint Synthetic(SyntheticFormat format) {
    const TemporaryDirectory temporary;
    const Status written =
        WriteSyntheticCheckpoint(temporary / "m", {.num_layers = {}, .vocab_size = {}, .format = format});
    EXPECT_TRUE(written.ok()) << written.message();
    return Read(temporary / "m");
  }

  EditableTensor& At(const std::string& name) {
    const auto found = std::find_if(tensors.begin(), tensors.end(),
                                    [&](const EditableTensor& t) { return t.spec.name == name; });
    if (found == tensors.end()) throw std::out_of_range("no tensor " + name);
    return *found;
  }
  void Remove(const std::string& name) { tensors.erase(tensors.begin() + (&At(name) - tensors.data())); }
  void Rename(const std::function<std::string(const std::string&)>& rename) {
    for (EditableTensor& tensor : tensors) tensor.spec.name = rename(tensor.spec.name);
  }

  void Write(const std::string& directory) {
    std::filesystem::create_directories(directory);
    std::ofstream(directory + "/config.json") << config_json;
    std::vector<io::TensorSpec> specs;
    for (const EditableTensor& tensor : tensors) specs.push_back(tensor.spec);
    auto writer = io::SafetensorsWriter::Create(directory + "/model.safetensors", specs);
    ASSERT_TRUE(writer.has_value()) << writer.error().message();
    for (const io::TensorSpec& spec : writer->specs()) {
      ASSERT_TRUE(writer->Append(std::as_bytes(std::span(At(spec.name).bytes))).ok()) << spec.name;
    }
    ASSERT_TRUE(writer->Finish().ok());
  }
};

inline Result<ModelWeights> LoadDirectory(const std::string& directory, const LoadOptions& options = {}) {
  DSV4_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(directory));
  DSV4_ASSIGN_OR_RETURN(auto checkpoint, io::Checkpoint::Open(directory));
  return LoadWeights(std::move(checkpoint), config, options);
}

// The message of loading an edited checkpoint; "no error" when it loads.
inline std::string LoadErrorOf(EditableCheckpoint& checkpoint, const LoadOptions& options = {}) {
  const TemporaryDirectory temporary;
  checkpoint.Write(temporary / "m");
  const auto weights = LoadDirectory(temporary / "m", options);
  return weights ? "no error" : weights.error().message();
}

}  // namespace dsv4::model
