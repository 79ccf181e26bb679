// Continues several texts together, a step for all of them at a time. C++20.
//
//   c++ -std=c++20 -I include batch.cc -L lib -ldsv4 -o batch && LD_LIBRARY_PATH=lib ./batch models/tiny "The capital of France is" "1 + 1 ="
#include <dsv4.h>

#include <cstdio>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr int64_t kMostTokens = 12;
constexpr size_t kStepsOfACall = 4;

// A handle, freed by the library's function for it.
template <auto Free>
struct Freed {
  void operator()(auto* handle) const { Free(handle); }
};
using Model = std::unique_ptr<dsv4_model, Freed<dsv4_model_free>>;
using Session = std::unique_ptr<dsv4_session, Freed<dsv4_session_free>>;
using Sampler = std::unique_ptr<dsv4_sampler, Freed<dsv4_sampler_free>>;
using Buffer = std::unique_ptr<dsv4_buffer, Freed<dsv4_buffer_free>>;

// make(&handle, &error) of the C API, as a handle or an exception.
template <typename Handle, typename Make>
Handle Made(const Make& make) {
  typename Handle::pointer handle = nullptr;
  dsv4_error error;
  if (make(&handle, &error) != DSV4_OK) throw std::runtime_error(error.message);
  return Handle(handle);
}

struct Answer {
  std::string_view text;
  Session session;
  Sampler sampler;
  std::vector<int32_t> ids;
};

Answer Begin(dsv4_model* model, std::string_view text) {
  const auto ids = Made<Buffer>([&](auto* out, dsv4_error* error) {
    return dsv4_tokenize(model, text.data(), text.size(), 0, out, error);
  });
  Answer answer;
  answer.text = text;
  answer.session =
      Made<Session>([&](auto* out, dsv4_error* error) { return dsv4_session_new(model, out, error); });
  dsv4_sampling sampling;
  dsv4_sampling_init(&sampling);
  sampling.temperature = 0;
  answer.sampler = Made<Sampler>(
      [&](auto* out, dsv4_error* error) { return dsv4_sampler_new(model, &sampling, nullptr, out, error); });
  dsv4_error error;
  if (dsv4_session_append(answer.session.get(), static_cast<const int32_t*>(dsv4_buffer_data(ids.get())),
                          dsv4_buffer_size(ids.get()) / sizeof(int32_t), 0, &error) != DSV4_OK) {
    throw std::runtime_error(error.message);
  }
  return answer;
}

// Steps until every answer has ended. A row leaves the batch when its answer is over; the others go on.
void Decode(dsv4_model* model, std::span<Answer> answers) {
  std::vector<Answer*> running;
  for (Answer& answer : answers) running.push_back(&answer);
  while (!running.empty()) {
    std::vector<dsv4_row> rows;
    for (const Answer* answer : running) {
      rows.push_back({.size = sizeof(dsv4_row),
                      .session = answer->session.get(),
                      .sampler = answer->sampler.get(),
                      .left = kMostTokens - static_cast<int64_t>(answer->ids.size())});
    }
    std::vector<int32_t> tokens(kStepsOfACall * rows.size());
    size_t done = 0;
    dsv4_error error;
    if (dsv4_decode(rows.data(), rows.size(), kStepsOfACall, tokens.data(), &done, &error) != DSV4_OK) {
      throw std::runtime_error(error.message);
    }
    for (size_t i = 0; i < done * rows.size(); ++i) running[i % rows.size()]->ids.push_back(tokens[i]);
    std::erase_if(running, [&](Answer* answer) {
      const bool stopped = dsv4_model_is_stop(model, answer->ids.back()) != 0;
      if (stopped) answer->ids.pop_back();
      return stopped || static_cast<int64_t>(answer->ids.size()) == kMostTokens;
    });
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3) {
    std::fputs("usage: batch MODEL TEXT...\n", stderr);
    return 2;
  }
  dsv4_model_options options;
  dsv4_model_options_init(&options);
  options.path = argv[1];
  const auto model =
      Made<Model>([&](auto* out, dsv4_error* error) { return dsv4_model_open(&options, out, error); });
  std::vector<Answer> answers;
  for (const char* text : std::span(argv + 2, argv + argc)) answers.push_back(Begin(model.get(), text));
  Decode(model.get(), answers);
  for (const Answer& answer : answers) {
    const auto text = Made<Buffer>([&](auto* out, dsv4_error* error) {
      return dsv4_detokenize(model.get(), answer.ids.data(), answer.ids.size(), out, error);
    });
    std::printf("%.*s%.*s\n", static_cast<int>(answer.text.size()), answer.text.data(),
                static_cast<int>(dsv4_buffer_size(text.get())),
                static_cast<const char*>(dsv4_buffer_data(text.get())));
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "batch: %s\n", error.what());
  return 1;
}
