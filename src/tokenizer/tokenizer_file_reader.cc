// Streaming reader of tokenizer.json that keeps vocabulary and merges out of the document.
#include "tokenizer/tokenizer_file_reader.h"

#include <fmt/format.h>

#include <utility>

#include "base/json.h"
#include "base/text.h"

namespace dsv4::tokenizer {
namespace {

constexpr size_t kMaxDepth = 32;

// A document of 8 MB has a quarter of a million values in vocab and merges. As a tree of JSON objects they
// would take more time and memory than all else. So they go straight into vectors, and the rest becomes a
// small tree.
class Handler final : public nlohmann::json_sax<FileJson> {
 public:
  explicit Handler(RawTokenizerFile* file) : file_(*file) {}

  const std::string& error() const { return error_; }

  bool null() override { return Value(nullptr); }
  bool boolean(bool value) override { return Value(value); }
  bool number_float(double value, const std::string& text) override {
    if (mode_ == Mode::kVocab) return BadId(text);
    return Value(value);
  }
  bool number_integer(int64_t value) override {
    if (mode_ == Mode::kVocab) return BadId(std::to_string(value));
    return Value(value);
  }
  bool number_unsigned(uint64_t value) override {
    if (mode_ != Mode::kVocab) return Value(value);
    if (value >= static_cast<uint64_t>(kMaxNumTokenIds)) return BadId(std::to_string(value));
    file_.vocab.push_back({std::move(key_), static_cast<TokenId>(value)});
    return true;
  }
  bool string(std::string& value) override {
    switch (mode_) {
      case Mode::kTree:
        return Value(std::move(value));
      case Mode::kVocab:
        return BadId('"' + value + '"');
      case Mode::kMerges:
        return MergeString(value);
      case Mode::kMergePair:
        pair_.push_back(std::move(value));
        return pair_.size() <= 2 || BadMerge("a list of more than two strings");
    }
    return false;
  }
  bool binary(binary_t&) override { return Fail("binary value"); }  // Not in JSON text.

  bool start_object(size_t) override {
    if (mode_ == Mode::kVocab) return BadId("an object");
    if (mode_ != Mode::kTree) return BadMerge("an object");
    if (AtModelMember("vocab")) {
      if (!Value(nullptr)) return false;
      file_.has_vocab = true;
      mode_ = Mode::kVocab;
      return true;
    }
    return Open(FileJson::object());
  }
  bool key(std::string& value) override {
    key_ = std::move(value);
    if (mode_ == Mode::kTree && stack_.back()->contains(key_))
      return Fail(fmt::format("key \"{}\" twice", key_));
    return true;
  }
  bool end_object() override {
    if (mode_ == Mode::kVocab) {
      mode_ = Mode::kTree;
    } else {
      stack_.pop_back();
    }
    return true;
  }

  bool start_array(size_t) override {
    switch (mode_) {
      case Mode::kVocab:
        return BadId("a list");
      case Mode::kMerges:
        mode_ = Mode::kMergePair;
        pair_.clear();
        return true;
      case Mode::kMergePair:
        return BadMerge("a list in a list");
      case Mode::kTree:
        break;
    }
    if (AtModelMember("merges")) {
      if (!Value(nullptr)) return false;
      file_.has_merges = true;
      mode_ = Mode::kMerges;
      return true;
    }
    return Open(FileJson::array());
  }
  bool end_array() override {
    switch (mode_) {
      case Mode::kMergePair:
        if (pair_.size() != 2) return BadMerge(fmt::format("a list of {}", pair_.size()));
        file_.merges.push_back({std::move(pair_[0]), std::move(pair_[1])});
        mode_ = Mode::kMerges;
        return true;
      case Mode::kMerges:
        mode_ = Mode::kTree;
        return true;
      default:
        stack_.pop_back();
        return true;
    }
  }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& e) override {
    return Fail(fmt::format("not valid JSON: {}", JsonFault(e.what())));
  }

 private:
  enum class Mode { kTree, kVocab, kMerges, kMergePair };

  bool Fail(std::string message) {
    error_ = std::move(message);
    return false;
  }
  bool BadId(std::string_view got) {
    return Fail(
        fmt::format("model.vocab entry \"{}\": got {}, wanted an id in [0, {})", key_, got, kMaxNumTokenIds));
  }
  bool BadMerge(std::string_view got) {
    return Fail(fmt::format("model.merges entry {}: got {}, wanted \"left right\" or [\"left\", \"right\"]",
                            file_.merges.size(), got));
  }

  bool MergeString(const std::string& value) {
    const size_t blank = value.find(' ');
    if (blank == std::string::npos || value.find(' ', blank + 1) != std::string::npos) {
      return BadMerge('"' + value + '"');
    }
    file_.merges.push_back({value.substr(0, blank), value.substr(blank + 1)});
    return true;
  }

  // Whether the value that begins now is model.<name>.
  bool AtModelMember(std::string_view name) const { return stack_.size() == 2 && in_model_ && key_ == name; }

  // Puts a value where the parser stands.
  bool Value(FileJson value) {
    if (mode_ == Mode::kVocab) return BadId(value.dump());
    if (mode_ != Mode::kTree) return BadMerge(value.dump());
    (void)Place(std::move(value));
    return true;
  }
  FileJson* Place(FileJson value) {
    if (stack_.empty()) return &(file_.rest = std::move(value));
    FileJson& parent = *stack_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[key_] = std::move(value));
  }
  bool Open(FileJson container) {
    if (stack_.size() >= kMaxDepth)
      return Fail(fmt::format("nested deeper than {}", Counted(kMaxDepth, "level")));
    if (stack_.size() == 1) in_model_ = stack_.back()->is_object() && key_ == "model";
    stack_.push_back(Place(std::move(container)));
    return true;
  }

  RawTokenizerFile& file_;
  Mode mode_ = Mode::kTree;
  // Containers that are open. An element of a list stays where it is while it is open: the list cannot grow
  // then.
  std::vector<FileJson*> stack_;
  bool in_model_ = false;  // The open member of the top level is "model".
  std::string key_;
  std::vector<std::string> pair_;
  std::string error_;
};

}  // namespace

Result<RawTokenizerFile> ReadTokenizerFile(std::string_view json, std::string_view what) {
  DSV4_TRY(CheckZeroBytes(json, fmt::format("{}: not valid JSON", what)));
  RawTokenizerFile file;
  Handler handler(&file);
  try {
    if (!FileJson::sax_parse(json, &handler)) {
      return Error(InvalidArgument(fmt::format("{}: {}", what, handler.error())));
    }
  } catch (const std::exception& e) {
    return Error(InvalidArgument(fmt::format("{}: not valid JSON: {}", what, e.what())));
  }
  return file;
}

}  // namespace dsv4::tokenizer
