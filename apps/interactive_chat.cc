#include "apps/interactive_chat.h"

#include <editline/readline.h>
#include <fmt/format.h>

#include <cstdlib>
#include <iostream>
#include <optional>

#include "apps/answer_printer.h"
#include "apps/run_report.h"
#include "apps/terminal.h"

namespace dsv4::apps {
namespace {

constexpr std::string_view kHelp =
    "/think         switch reasoning before the answer on or off\n"
    "/system TEXT   set the system message and start afresh\n"
    "/clear         forget the conversation\n"
    "/exit          leave (also Ctrl-D); Ctrl-C stops an answer\n"
    "A line that ends in \\ continues on the next.\n";

class Chat {
 public:
  Chat(ChatRuntime& runtime, ChatRuntime::Ask ask, const std::string& system)
      : runtime_(runtime), ask_(std::move(ask)), printer_(stdout, Style(StdoutIsTerminal())) {
    Reset(system);
    ask_.on_delta = [this](const chat::Delta& delta) { printer_.Print(delta); };
    ask_.on_prefill = [this](int64_t done, int64_t total) {
      if (done < total)
        prefill_bar_.Update(done, total);
      else
        prefill_bar_.Clear();
    };
  }

  int Run() {
    const InterruptScope interrupts;
    if (StdinIsTerminal()) fmt::print(stderr, "Type a message, or /help.\n");
    while (const std::optional<std::string> line = ReadMessage()) {
      if (line->empty()) continue;
      if (line->front() == '/') {
        if (!Command(*line)) break;
      } else {
        Answer(*line);
      }
    }
    return failed_ ? kExitRunFailed : kExitOk;
  }

 private:
  void Reset(const std::string& system) {
    messages_.clear();
    if (!system.empty()) messages_.push_back({.role = chat::Role::kSystem, .content = system});
  }

  // False to leave.
  bool Command(const std::string& line) {
    if (line == "/exit" || line == "/quit") return false;
    if (line == "/help") {
      fmt::print(stderr, "{}", kHelp);
    } else if (line == "/clear") {
      std::erase_if(messages_,
                    [](const chat::Message& message) { return message.role != chat::Role::kSystem; });
    } else if (line == "/think") {
      const bool on = ask_.mode == chat::ThinkingMode::kChat;
      ask_.mode = on ? chat::ThinkingMode::kThinking : chat::ThinkingMode::kChat;
      fmt::print(stderr, "Reasoning {}.\n", on ? "on" : "off");
    } else if (line.starts_with("/system ")) {
      Reset(line.substr(8));
    } else {
      fmt::print(stderr, "Unknown command {}; /help lists them.\n", line);
    }
    return true;
  }

  // nullopt at the end of input.
  std::optional<std::string> ReadLine(const char* prompt) {
    if (!StdinIsTerminal()) {
      std::string line;
      if (!std::getline(std::cin, line)) return std::nullopt;
      return line;
    }
    char* line = readline(prompt);
    if (line == nullptr) {
      // Ctrl-C on an empty line clears it; the end of input leaves.
      if (!InterruptScope::Take()) return std::nullopt;
      fmt::print(stderr, "\n");
      return std::string();
    }
    std::string text(line);
    std::free(line);
    if (!text.empty()) add_history(text.c_str());
    return text;
  }

  std::optional<std::string> ReadMessage() {
    std::optional<std::string> message = ReadLine("> ");
    while (message && message->ends_with('\\')) {
      message->back() = '\n';
      const std::optional<std::string> more = ReadLine("… ");
      if (!more) return std::nullopt;
      *message += *more;
    }
    return message;
  }

  void Answer(const std::string& text) {
    messages_.push_back({.role = chat::Role::kUser, .content = text});
    const Result<ChatRuntime::Answer> answer = runtime_.Respond(messages_, ask_);
    prefill_bar_.Clear();
    if (!answer) {
      messages_.pop_back();  // The chat goes on as if the message had not been sent.
      failed_ = true;
      fmt::print(stderr, "dsv4: {}\n", answer.error().message());
      return;
    }
    failed_ = false;
    printer_.EndAnswer();
    // A stopped answer stays in the history as far as it came: the reader has seen it.
    messages_.push_back({.role = chat::Role::kAssistant,
                         .content = answer->completion.message.content,
                         .reasoning_content = answer->completion.message.reasoning_content});
    // Every turn draws anew, or a repeated question would repeat its answer.
    ++ask_.sampling.seed;
    fmt::print(stderr, "{}{}{}\n", dim_.dim, SpeedLine(answer->generation), dim_.reset);
  }

  ChatRuntime& runtime_;
  ChatRuntime::Ask ask_;
  AnswerPrinter printer_;
  ProgressBar prefill_bar_{"Reading"};
  Style dim_{StderrIsTerminal()};
  std::vector<chat::Message> messages_;
  bool failed_ = false;
};

}  // namespace

int RunInteractiveChat(ChatRuntime& runtime, ChatRuntime::Ask ask, const std::string& system) {
  return Chat(runtime, std::move(ask), system).Run();
}

}  // namespace dsv4::apps
