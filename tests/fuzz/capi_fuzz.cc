// The C API in random order: every byte chooses a call, the next ones its arguments. Whatever is called, it
// succeeds or gives an error with a message, and the state stays one that other calls can go on with.
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "include/dsv4.h"
#include "tiny_model_folder.h"

namespace dsv4 {
namespace {

constexpr size_t kMostHandles = 6;
constexpr size_t kMostTokens = 24;  // Limit of one input, or it takes seconds.

// The rest of the input; zeros behind its end.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return at_ >= size_; }
  uint8_t Next() { return at_ < size_ ? data_[at_++] : uint8_t{0}; }
  std::string Text() {
    std::string text;
    for (size_t length = Next() % 32; text.size() < length;) text += static_cast<char>(Next());
    return text;
  }

 private:
  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
};

template <typename T, void (*Free)(T*)>
class Handles {
 public:
  ~Handles() {
    for (T* one : all_) Free(one);
  }
  void Add(T* one) {
    if (all_.size() == kMostHandles) Drop(0);
    all_.push_back(one);
  }
  void Drop(size_t choice) {
    if (all_.empty()) return;
    const auto place = all_.begin() + static_cast<ptrdiff_t>(choice % all_.size());
    Free(*place);
    all_.erase(place);
  }
  // Null when there is none.
  T* Choose(size_t choice) const { return all_.empty() ? nullptr : all_[choice % all_.size()]; }

 private:
  std::vector<T*> all_;
};

dsv4_model* Model() {
  static dsv4_model* const model = [] {
    dsv4_model_options options;
    dsv4_model_options_init(&options);
    const std::string path = testing::TinyModelFolder();
    options.path = path.c_str();
    options.max_layers = 3;
    options.threads = 1;
    dsv4_model* made = nullptr;
    dsv4_error error;
    DSV4_CHECK(dsv4_model_open(&options, &made, &error) == DSV4_OK);
    return made;
  }();
  return model;
}

// True for success. A failure has its code and a text.
bool Worked(dsv4_code code, const dsv4_error& error) {
  DSV4_CHECK(code == DSV4_OK || (error.code == code && error.message[0] != '\0'));
  return code == DSV4_OK;
}

std::vector<int32_t> Ids(Bytes& bytes, size_t& tokens_left) {
  std::vector<int32_t> ids(std::min<size_t>(bytes.Next() % 8, tokens_left));
  for (int32_t& id : ids) {
    id = bytes.Next() * 97 + bytes.Next();
    if (bytes.Next() == 255) id = -id;
  }
  tokens_left -= ids.size();
  return ids;
}

void OnDelta(const dsv4_delta* delta, void* user) {
  DSV4_CHECK(delta->size == sizeof(*delta) && delta->kind >= DSV4_REASONING && delta->kind <= DSV4_DONE);
  static_cast<std::string*>(user)->append(delta->text, delta->text_size);
}

void TakeBuffer(dsv4_buffer* buffer) {
  const std::string copy(static_cast<const char*>(dsv4_buffer_data(buffer)), dsv4_buffer_size(buffer));
  dsv4_buffer_free(buffer);
}

class Calls {
 public:
  explicit Calls(Bytes bytes) : bytes_(bytes) {}

  void Run() {
    while (!bytes_.empty()) One();
  }

 private:
  void One() {
    dsv4_error error = {};
    dsv4_session* session = sessions_.Choose(bytes_.Next());
    switch (bytes_.Next() % 19) {
      case 0: {
        dsv4_session* made = nullptr;
        if (Worked(dsv4_session_new(Model(), &made, &error), error)) sessions_.Add(made);
        break;
      }
      case 1:
        sessions_.Drop(bytes_.Next());
        break;
      case 2: {
        if (session == nullptr) break;
        const std::vector<int32_t> ids = Ids(bytes_, tokens_left_);
        const int64_t before = dsv4_session_length(session);
        const bool worked =
            Worked(dsv4_session_append(session, ids.data(), ids.size(), bytes_.Next() & 1, &error), error);
        DSV4_CHECK(dsv4_session_length(session) == before + (worked ? static_cast<int64_t>(ids.size()) : 0));
        break;
      }
      case 3: {
        const float* logits = nullptr;
        size_t rows = 0;
        if (session != nullptr && Worked(dsv4_session_logits(session, &logits, &rows, &error), error)) {
          DSV4_CHECK(rows > 0);
          sum_ += logits[rows * static_cast<size_t>(dsv4_model_vocab_size(Model())) - 1];
        }
        break;
      }
      case 4:
        if (session != nullptr) {
          Worked(dsv4_session_rewind(session, static_cast<int8_t>(bytes_.Next()), &error), error);
        }
        break;
      case 5: {
        dsv4_session* fork = nullptr;
        if (session != nullptr && Worked(dsv4_session_fork(session, &fork, &error), error))
          sessions_.Add(fork);
        break;
      }
      case 6: {
        dsv4_buffer* state = nullptr;
        if (session == nullptr || !Worked(dsv4_session_snapshot(session, &state, &error), error)) break;
        snapshot_.assign(static_cast<const char*>(dsv4_buffer_data(state)), dsv4_buffer_size(state));
        dsv4_buffer_free(state);
        break;
      }
      case 7:
        if (session != nullptr)
          Worked(dsv4_session_restore(session, snapshot_.data(), snapshot_.size(), &error), error);
        break;
      case 8: {
        // A damaged snapshot.
        std::string damaged = snapshot_;
        if (session == nullptr || damaged.empty()) break;
        damaged[(bytes_.Next() * 257U + bytes_.Next()) % damaged.size()] ^= static_cast<char>(bytes_.Next());
        if (bytes_.Next() % 4 == 0) damaged.resize(damaged.size() * bytes_.Next() / 256);
        Worked(dsv4_session_restore(session, damaged.data(), damaged.size(), &error), error);
        break;
      }
      case 9: {
        std::vector<std::vector<int32_t>> ids;
        std::vector<dsv4_chunk> chunks;
        const size_t count = bytes_.Next() % 4;
        for (size_t i = 0; i < count; ++i) ids.push_back(Ids(bytes_, tokens_left_));
        for (size_t i = 0; i < count; ++i) {
          chunks.push_back({.size = bytes_.Next() == 255 ? 1 : sizeof(dsv4_chunk),
                            .session = sessions_.Choose(bytes_.Next()),
                            .ids = ids[i].data(),
                            .num_ids = ids[i].size(),
                            .all_logits = bytes_.Next() & 1});
        }
        Worked(dsv4_step(chunks.data(), chunks.size(), &error), error);
        break;
      }
      case 10: {
        const std::string text = bytes_.Text();
        dsv4_buffer* ids = nullptr;
        if (Worked(dsv4_tokenize(Model(), text.data(), text.size(), bytes_.Next() & 1, &ids, &error),
                   error)) {
          TakeBuffer(ids);
        }
        break;
      }
      case 11: {
        size_t unlimited = 8;
        const std::vector<int32_t> ids = Ids(bytes_, unlimited);
        dsv4_buffer* text = nullptr;
        if (Worked(dsv4_detokenize(Model(), ids.data(), ids.size(), &text, &error), error)) TakeBuffer(text);
        break;
      }
      case 12: {
        static constexpr std::array kRequests = {
            R"({"messages": [{"role": "user", "content": "Hello"}]})",
            R"({"messages": [{"role": "user", "content": "Hello"}], "thinking_mode": "chat"})",
            R"({"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": {"name": "f",
                "parameters": {"type": "object"}}}]})"};
        const uint8_t which = bytes_.Next() % 4;
        const std::string request = which < kRequests.size() ? kRequests[which] : bytes_.Text();
        dsv4_prompt* prompt = nullptr;
        if (!Worked(dsv4_render(Model(), request.c_str(), &prompt, &error), error)) break;
        size_t count = 0;
        DSV4_CHECK(dsv4_prompt_ids(prompt, &count) != nullptr && count > 0);
        DSV4_CHECK(!std::string_view(dsv4_prompt_text(prompt)).empty());
        prompts_.Add(prompt);
        break;
      }
      case 13:
        prompts_.Drop(bytes_.Next());
        break;
      case 14: {
        dsv4_sampling sampling;
        dsv4_sampling_init(&sampling);
        sampling.temperature = static_cast<float>(static_cast<int8_t>(bytes_.Next())) / 32;
        sampling.top_p = static_cast<float>(bytes_.Next()) / 200;
        sampling.top_k = static_cast<int8_t>(bytes_.Next());
        sampling.seed = bytes_.Next();
        static constexpr std::array<const char*, 8> kRules = {
            nullptr,  R"({"type": "object"})", R"({"enum": ["a", 1]})",        "{",
            "[a-c]+", R"(["a", "bc"])",        "root ::= \"a\" | \"bc\" root", "start: \"x\"+"};
        const uint8_t rule = bytes_.Next();
        sampling.rule = kRules[rule % kRules.size()];
        sampling.rule_kind = sampling.rule == nullptr ? rule / 224 : rule / 8 % 7;
        dsv4_sampler* sampler = nullptr;
        if (Worked(dsv4_sampler_new(Model(), &sampling, prompts_.Choose(bytes_.Next()), &sampler, &error),
                   error)) {
          samplers_.Add(sampler);
        }
        break;
      }
      case 15: {
        dsv4_sampler* sampler = samplers_.Choose(bytes_.Next());
        int32_t token = -1;
        if (sampler == nullptr || session == nullptr) break;
        if (!Worked(dsv4_sample(sampler, session, &token, &error), error)) break;
        DSV4_CHECK(token >= 0 && token < dsv4_model_vocab_size(Model()));
        if (tokens_left_ > 0 && (bytes_.Next() & 1) != 0) {
          --tokens_left_;
          Worked(dsv4_session_append(session, &token, 1, 0, &error), error);
        }
        break;
      }
      case 16: {
        std::vector<dsv4_row> rows;
        std::vector<int64_t> before;
        for (size_t i = bytes_.Next() % 4; i > 0 && tokens_left_ > 0; --i, --tokens_left_) {
          rows.push_back({.size = bytes_.Next() == 255 ? 1 : sizeof(dsv4_row),
                          .session = sessions_.Choose(bytes_.Next()),
                          .sampler = samplers_.Choose(bytes_.Next()),
                          .left = static_cast<int8_t>(bytes_.Next())});
          before.push_back(rows.back().session == nullptr ? 0 : dsv4_session_length(rows.back().session));
        }
        const size_t num_steps = bytes_.Next() % 3;
        std::vector<int32_t> tokens(rows.size() * num_steps, -1);
        size_t done = 0;
        const bool worked =
            Worked(dsv4_decode(rows.data(), rows.size(), num_steps, tokens.data(), &done, &error), error);
        DSV4_CHECK(done <= num_steps && (!worked || done > 0));
        for (const int32_t token : std::span(tokens).first(done * rows.size()))
          DSV4_CHECK(token >= 0 && token < dsv4_model_vocab_size(Model()));
        for (size_t i = 0; i < rows.size(); ++i) {
          if (rows[i].session == nullptr) continue;
          const int64_t read = dsv4_session_length(rows[i].session) - before[i];
          DSV4_CHECK(read >= 0 && read <= static_cast<int64_t>(done));
        }
        break;
      }
      case 17: {
        const std::string stop = bytes_.Text();
        const std::string until_zero = stop.c_str();
        const char* stops = until_zero.c_str();
        dsv4_parser* parser = nullptr;
        dsv4_prompt* prompt = prompts_.Choose(bytes_.Next());
        if (prompt != nullptr &&
            Worked(dsv4_parser_new(Model(), prompt, &stops, bytes_.Next() & 1, &parser, &error), error)) {
          parsers_.Add(parser);
        }
        break;
      }
      default: {
        dsv4_parser* parser = parsers_.Choose(bytes_.Next());
        if (parser == nullptr) break;
        std::string text;
        int32_t done = 0;
        size_t unlimited = 8;
        const std::vector<int32_t> ids = Ids(bytes_, unlimited);
        if (bytes_.Next() % 8 != 0) {
          Worked(dsv4_parser_feed(parser, ids.data(), ids.size(), OnDelta, &text, &done, &error), error);
        } else {
          Worked(dsv4_parser_finish(parser, bytes_.Next() & 1, OnDelta, &text, &error), error);
        }
      }
    }
  }

  Bytes bytes_;
  size_t tokens_left_ = kMostTokens;
  std::string snapshot_;
  float sum_ = 0;
  Handles<dsv4_session, dsv4_session_free> sessions_;
  Handles<dsv4_prompt, dsv4_prompt_free> prompts_;
  Handles<dsv4_sampler, dsv4_sampler_free> samplers_;
  Handles<dsv4_parser, dsv4_parser_free> parsers_;
};

}  // namespace
}  // namespace dsv4

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dsv4::Calls(dsv4::Bytes(data, size)).Run();
  return 0;
}
