// Terminal chat: commands, history, streaming answers, tools, and Ctrl-C.
#include "apps/run/interactive_chat.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>

#include "apps/run/tool_commands.h"
#include "apps/shared/chat_file.h"
#include "apps/shared/last_conversation.h"
#include "apps/shared/run_report.h"
#include "apps/terminal/answer_printer.h"
#include "apps/terminal/line_editor.h"
#include "apps/terminal/printable.h"
#include "apps/terminal/terminal.h"
#include "apps/terminal/text_writer.h"
#include "base/error_output.h"
#include "base/read_file.h"
#include "base/text.h"

namespace dsv4::apps {
namespace {

// "~/notes.txt" as a shell has it: no shell has seen what is typed here.
std::string UnderHome(std::string_view path) {
  const char* home = std::getenv("HOME");
  const bool tilde = path == "~" || path.starts_with("~/");
  return tilde && home != nullptr ? std::string(home) + std::string(path.substr(1)) : std::string(path);
}

class Chat {
 public:
  Chat(ChatRuntime& runtime, ChatRuntime::Ask ask, const std::string& system,
       std::vector<chat::JsonValue> tools, ToolCommands commands, ChatManner manner)
      : runtime_(runtime),
        ask_(std::move(ask)),
        tools_(std::move(tools)),
        commands_(std::move(commands)),
        quiet_(manner.quiet),
        anyway_(manner.anyway),
        printer_(MakeAnswerPrinter(
            manner.reasoning, [this](std::string_view tool) { return commands_.Find(tool) != nullptr; })),
        editor_(ChatHistoryPath(), [](std::string_view line) { return Completions(line); }) {
    Reset(system);
    ask_.on_delta = [this](const chat::Delta& delta) { printer_.Print(delta); };
    ask_.on_prefill = [this](int64_t done, int64_t total) {
      if (done < total && !quiet_)
        prefill_bar_.Update(done, total);
      else
        prefill_bar_.Clear();
    };
  }

  // `last`: what was said in another run. `first`: a message that is there already. Both may be empty.
  int Run(std::vector<chat::Message> last, const std::string& first) {
    if (!last.empty()) messages_ = std::move(last);
    CountCalls();
    const InterruptScope interrupts;
    InterruptScope::SetAnswering(false);
    if (StdinIsTerminal() && !quiet_) {
      Say(fmt::format("backend {}, {}", runtime_.backend_name(),
                      SettingsLine(runtime_.profile(), ask_.mode, ask_.effort, ask_.sampling)));
      SayWhereItGoesOn();
      Say("Type a message, or /help.");
    }
    if (!first.empty()) Ask(first);
    while (!left_) {
      const LineEditor::Line line = editor_.Read("> ", std::exchange(initial_, {}));
      if (line.kind == LineEditor::Line::Kind::kEnd) break;
      if (line.kind == LineEditor::Line::Kind::kInterrupted ||
          line.text.find_first_not_of(" \t\n") == std::string::npos) {
        continue;
      }
      if (StdinIsTerminal()) editor_.AddHistory(line.text);
      if (IsCommand(line.text)) {
        RunCommand(line.text);
      } else {
        Ask(line.text);
      }
    }
    InterruptScope::SetAnswering(true);  // Work behind a chat may hang as well.
    return failed_ ? kExitRunFailed : kExitOk;
  }

 private:
  // ---- Commands

  struct Command {
    std::string_view name;
    std::string_view argument;  // Argument that stands behind it; empty: nothing may.
    std::string_view help;
    void (Chat::*run)(const std::string& argument);
  };

  static std::span<const Command> Commands() {
    static constexpr std::array kCommands = {
        Command{"/think", "", "switch reasoning before the answer on or off", &Chat::Think},
        Command{"/effort", "[LEVEL]", "how much to reason; without LEVEL: the model's own", &Chat::Effort},
        Command{"/system", "[TEXT]", "set the system message and start afresh", &Chat::System},
        Command{"/clear", "", "forget the conversation", &Chat::Clear},
        Command{"/regen", "", "answer the last message once more", &Chat::Regenerate},
        Command{"/anyway", "", "answer a message that the model's own notice stopped", &Chat::Anyway},
        Command{"/undo", "", "take the last message and its answer back", &Chat::Undo},
        Command{"/edit", "", "change the last message and send it again", &Chat::Edit},
        Command{"/read", "FILE", "put a text file in front of the next message", &Chat::Read},
        Command{"/save", "FILE", "write the conversation, as --messages reads it", &Chat::Save},
        Command{"/load", "FILE", "go on with a conversation from a file", &Chat::Load},
        Command{"/set", "[NAME VALUE]", "show or change sampling: temperature, top-p, top-k, min-p, ...",
                &Chat::Set},
        Command{"/tools", "[FILE|off]", "tools that the answer may call; you are asked for their results",
                &Chat::Tools},
        Command{"/allow", "[TOOL COMMAND]", "let a command answer the calls of a tool, or show which do",
                &Chat::Allow},
        Command{"/stats", "", "speed of the last answer, and context used", &Chat::Stats},
        Command{"/help", "", "this list", &Chat::Help},
        Command{"/exit", "", "leave (also /quit and Ctrl-D)", &Chat::Leave},
        Command{"/quit", "", "", &Chat::Leave},
    };
    return kCommands;
  }

  // "/" and letters: a path at the start of a message is no command.
  static bool IsCommand(std::string_view line) {
    const std::string_view word = line.substr(0, line.find_first_of(" \t\n"));
    return word.size() > 1 && word.front() == '/' && std::all_of(word.begin() + 1, word.end(), [](char c) {
             return std::isalpha(static_cast<unsigned char>(c)) != 0;
           });
  }

  void RunCommand(const std::string& line) {
    const size_t space = line.find_first_of(" \t\n");
    const std::string name = Lowercase(line.substr(0, space));
    const std::string argument(Trim(std::string_view(line).substr(std::min(space, line.size())), " \t\n"));
    const std::span<const Command> commands = Commands();
    const auto command =
        std::find_if(commands.begin(), commands.end(), [&](const Command& c) { return c.name == name; });
    if (command == commands.end()) {
      Say(fmt::format("Unknown command {}; /help lists them.", name));
    } else if (command->argument.empty() && !argument.empty()) {
      Say(fmt::format("{} takes nothing behind it, got '{}'.", name, Printable(argument)));
    } else if (!command->argument.empty() && command->argument.front() != '[' && argument.empty()) {
      Say(fmt::format("{} wants {}.", name, command->argument));
    } else {
      (this->*command->run)(argument);
    }
  }

  static std::vector<std::string> Completions(std::string_view line) {
    std::vector<std::string> words;
    if (!line.starts_with('/')) return words;
    const size_t space = line.find(' ');
    if (space == std::string_view::npos) {
      for (const Command& command : Commands()) {
        if (command.name.starts_with(line)) {
          words.push_back(std::string(command.name) + (command.argument.empty() ? "" : " "));
        }
      }
      return words;
    }
    const std::string_view name = line.substr(0, space + 1);
    if (name == "/read " || name == "/save " || name == "/load " || name == "/tools ") {
      const std::filesystem::path typed(line.substr(space + 1));
      std::error_code error;
      const std::filesystem::path folder =
          typed.has_parent_path() ? UnderHome(typed.parent_path().string()) : std::string(".");
      for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
        const std::string file = entry.path().filename().string();
        if (!file.starts_with(typed.filename().string())) continue;
        const std::filesystem::path whole =
            typed.has_parent_path() ? typed.parent_path() / file : std::filesystem::path(file);
        words.push_back(std::string(name) + whole.string() + (entry.is_directory(error) ? "/" : ""));
      }
      std::sort(words.begin(), words.end());
    }
    return words;
  }

  void Help(const std::string&) {
    const bool narrow = StderrIsTerminal() && TerminalColumns(STDERR_FILENO) < kColumnsOfHelp;
    std::string text;
    for (const Command& command : Commands()) {
      if (command.help.empty()) continue;
      const std::string name = fmt::format("{} {}", command.name, command.argument);
      text += narrow ? fmt::format("{}\n  {}\n", name, command.help)
                     : fmt::format("{:<22} {}\n", name, command.help);
    }
    text +=
        "A line that ends in \\ continues on the next, and so does Alt-Enter; pasted lines are one message.\n"
        "Up, Down, Ctrl-R: earlier messages. Tab: completes commands and files. Ctrl-C: stops an answer.";
    Say(text);
  }

  void Leave(const std::string&) { left_ = true; }

  void Think(const std::string&) {
    const bool on = ask_.mode == chat::ThinkingMode::kChat;
    ask_.mode = on ? chat::ThinkingMode::kThinking : chat::ThinkingMode::kChat;
    Say(fmt::format("Reasoning {}.", on ? "on" : "off"));
  }

  void Effort(const std::string& level) {
    if (level.empty()) {
      ask_.effort.reset();
      Say("Effort: the model's own.");
      return;
    }
    const Status known = runtime_.text().CheckEffort(level);
    if (known.ok()) ask_.effort = level;
    Say(known.ok() ? fmt::format("Effort {}.", level) : Printable(known.message()));
  }

  void Reset(const std::string& system) {
    messages_.clear();
    attached_.clear();
    if (!system.empty()) messages_.push_back({.role = chat::Role::kSystem, .content = system});
  }

  void System(const std::string& text) {
    Reset(text);
    Say(text.empty() ? "No system message; the conversation starts afresh."
                     : "The system message is set; the conversation starts afresh.");
  }

  void Clear(const std::string&) {
    std::erase_if(messages_,
                  [](const chat::Message& message) { return message.role != chat::Role::kSystem; });
    attached_.clear();
    Say(messages_.empty() ? "The conversation is forgotten."
                          : "The conversation is forgotten, except for the system message.");
  }

  // Takes the conversation back to in front of the last message of the user; nullopt, having said so, when there is none.
  std::optional<std::string> TakeLastTurn() {
    const auto last = std::find_if(messages_.rbegin(), messages_.rend(), [](const chat::Message& message) {
      return message.role == chat::Role::kUser;
    });
    if (last == messages_.rend()) {
      Say("There is no message yet.");
      return std::nullopt;
    }
    std::string text = last->content.text;
    messages_.erase(std::prev(last.base()), messages_.end());
    return text;
  }

  void Regenerate(const std::string&) {
    if (const std::optional<std::string> text = TakeLastTurn()) Ask(*text, /*anyway=*/true);
  }
  void Anyway(const std::string&) {
    if (stopped_.empty()) {
      Say("No message was stopped.");
    } else {
      Ask(std::exchange(stopped_, {}), /*anyway=*/true);
    }
  }
  void Undo(const std::string&) {
    if (TakeLastTurn()) Say("Taken back.");
  }
  void Edit(const std::string&) {
    if (!StdinIsTerminal() || !TerminalCanMoveCursor()) {
      Say("/edit: this terminal cannot show the message for editing; /undo takes it back.");
    } else if (const std::optional<std::string> text = TakeLastTurn()) {
      initial_ = *text;
    }
  }

  void Read(const std::string& path) {
    const Result<std::string> text = ReadFile(UnderHome(path), FileKind::kAny, kMaxAttachedBytes);
    if (!text) {
      Say(text.error().message());
      return;
    }
    attached_ += fmt::format("{}:\n```\n{}{}```\n\n", path, *text, text->ends_with('\n') ? "" : "\n");
    Say(fmt::format("{}: {} in front of the next message.", path,
                    Counted(text->size(), "byte goes", "bytes go")));
  }

  void Save(const std::string& path) {
    const Status saved = WriteChatFile(UnderHome(path), messages_);
    Say(saved.ok() ? fmt::format("{} written to {}.", Counted(messages_.size(), "message"), path)
                   : saved.message());
  }

  void Load(const std::string& path) {
    Result<std::vector<chat::Message>> messages = ReadChatFile(UnderHome(path));
    if (!messages) {
      Say(messages.error().message());
      return;
    }
    messages_ = std::move(*messages);
    CountCalls();
    Say(fmt::format("{} from {}.", Counted(messages_.size(), "message read", "messages read"), path));
  }

  // Calls of a conversation from elsewhere have ids already, and no two calls have the same.
  void CountCalls() {
    for (const chat::Message& message : messages_)
      num_calls_ += static_cast<int64_t>(message.tool_calls.size());
  }

  void Tools(const std::string& path) {
    if (path.empty() || path == "off") {
      if (path == "off") tools_.clear();
      Say(fmt::format("{}.", Counted(tools_.size(), "tool")));
      return;
    }
    Result<std::vector<chat::JsonValue>> tools = ReadToolsFile(UnderHome(path));
    if (!tools) {
      Say(tools.error().message());
      return;
    }
    tools_ = std::move(*tools);
    Say(fmt::format("{}. When one is called, its result is asked for here.", Counted(tools_.size(), "tool")));
  }

  void Allow(const std::string& text) {
    const size_t space = text.find_first_of(" \t");
    if (space != std::string::npos) {
      commands_.Allow(text.substr(0, space), text.substr(text.find_first_not_of(" \t", space)));
    } else if (!text.empty()) {
      Say("/allow wants TOOL COMMAND, as in /allow weather ./weather.sh");
      return;
    }
    if (commands_.empty()) Say("No command answers a call.");
    for (const auto& [name, command] : commands_.all()) {
      Say(fmt::format("{} is answered by {}", Printable(name), Printable(command)));
    }
  }

  void Set(const std::string& text) {
    sampling::SamplingParams& now = ask_.sampling;
    if (text.empty()) {
      Say(fmt::format(
          "temperature {}, top-p {}, top-k {}, min-p {}, repetition-penalty {}, presence-penalty {}, "
          "frequency-penalty {}, max-tokens {}, seed {}",
          now.temperature, now.top_p, now.top_k, now.min_p, now.repetition_penalty, now.presence_penalty,
          now.frequency_penalty, *ask_.max_tokens, now.seed));
      return;
    }
    const size_t space = text.find_first_of(" \t=");
    const std::string name = text.substr(0, space);
    const std::string value =
        space == std::string::npos ? std::string() : text.substr(text.find_first_not_of(" \t=", space));
    sampling::SamplingParams wanted = now;
    int64_t max_tokens = *ask_.max_tokens;
    const auto read = [&](auto& field) {
      const auto result = std::from_chars(value.data(), value.data() + value.size(), field);
      return result.ec == std::errc() && result.ptr == value.data() + value.size();
    };
    bool ok = false;
    std::string_view kind = "a number";
    if (name == "temperature")
      ok = read(wanted.temperature);
    else if (name == "top-p")
      ok = read(wanted.top_p);
    else if (name == "top-k") {
      kind = "a whole number from 0 on";
      ok = read(wanted.top_k);
    } else if (name == "min-p")
      ok = read(wanted.min_p);
    else if (name == "repetition-penalty")
      ok = read(wanted.repetition_penalty);
    else if (name == "presence-penalty")
      ok = read(wanted.presence_penalty);
    else if (name == "frequency-penalty")
      ok = read(wanted.frequency_penalty);
    else if (name == "seed") {
      kind = "a whole number from 0 on";
      ok = read(wanted.seed);
    } else if (name == "max-tokens") {
      kind = "a whole number from 1 on";
      ok = read(max_tokens) && max_tokens > 0;
    } else {
      Say(fmt::format("/set: got '{}'; /set alone lists the names.", Printable(name)));
      return;
    }
    const Status valid = sampling::ValidateSamplingParams(wanted, runtime_.model().config().vocab_size);
    if (!ok || !valid.ok()) {
      Say(ok ? valid.message() : fmt::format("/set {}: got '{}', wanted {}", name, Printable(value), kind));
      return;
    }
    now = wanted;
    ask_.max_tokens = max_tokens;
    Say(fmt::format("{} {}", name, value));
  }

  void Stats(const std::string&) {
    if (!last_) {
      Say("No answer yet.");
      return;
    }
    const auto used = static_cast<int64_t>(last_->prompt_token_ids.size() + last_->tokens.size());
    const int64_t context = runtime_.model().config().max_position_embeddings;
    Say(fmt::format("{}; {} of {} of context used ({:.1f} %)", SpeedLine(*last_), used,
                    Counted(context, "token"),
                    100.0 * static_cast<double>(used) / static_cast<double>(context)));
  }

  // ---- Answers

  // The last message of a conversation from another run: how its first line begins.
  void SayWhereItGoesOn() {
    const auto last = std::find_if(messages_.rbegin(), messages_.rend(), [](const chat::Message& message) {
      return message.role == chat::Role::kUser;
    });
    if (last == messages_.rend()) return;
    std::string line = last->content.text.substr(0, last->content.text.find('\n'));
    if (line.size() > kMostOfLastMessage) {
      size_t end = kMostOfLastMessage;
      while (end > 0 && (static_cast<unsigned char>(line[end]) & 0xc0) == 0x80)
        --end;  // Not inside a character.
      line = line.substr(0, end) + "…";
    }
    Say(fmt::format("{}, the last of yours: {}", Counted(messages_.size(), "message"), Printable(line)));
  }

  void Ask(const std::string& text, bool anyway = false) {
    const std::vector<chat::Message> before = messages_;
    const std::string attached = std::exchange(attached_, {});
    messages_.push_back({.role = chat::Role::kUser, .content = attached + text});
    // The chat goes on as if the message had not been sent.
    const auto take_back = [&] {
      messages_ = before;
      attached_ = attached;
    };
    if (const std::string notice = runtime_.NoticeOn(messages_); !notice.empty() && !anyway && !anyway_) {
      take_back();
      stopped_ = text;
      failed_ = true;
      Say(Printable(notice) + " /anyway answers all the same.");
      return;
    }
    for (;;) {
      std::vector<chat::Message> sent = messages_;
      chat::AttachTools(sent, tools_);
      InterruptScope::SetAnswering(true);
      const Result<Generation> answer = runtime_.Respond(sent, ask_);
      InterruptScope::SetAnswering(false);
      prefill_bar_.Clear();
      if (!answer) {
        take_back();
        failed_ = true;
        PrintError("dsv4: {}\n", answer.error().message());
        return;
      }
      failed_ = false;
      if (answer->cancelled()) printer_.NoteEcho();
      printer_.EndAnswer();
      last_ = *answer;
      // Every turn draws anew, or a repeated question would repeat its answer.
      ++ask_.sampling.seed;
      if (const std::string cut = CutLine(*answer, ask_.max_tokens); !cut.empty())
        Say(cut + "; /set max-tokens N");
      if (!quiet_) SayDim(SpeedLine(*answer));
      // A stopped answer stays in the history as far as it came: the reader has seen it. Of one that had said nothing yet, or only
      // begun a call, there is nothing to keep.
      const chat::ParsedCompletion& message = answer->completion.message;
      if (answer->cancelled() && message.content.empty() && message.reasoning_content.empty()) {
        take_back();
        Say("Stopped before the answer; the message is taken back.");
        return;
      }
      messages_.push_back(CallingMessage(message, num_calls_));
      KeepConversation(messages_);
      if (message.tool_calls.empty()) return;
      if (answer->cancelled() || !AnswerCalls()) {
        take_back();
        Say("The call has no result, so the message is taken back.");
        return;
      }
    }
  }

  // The results of the calls of the last message. False when one has none.
  bool AnswerCalls() {
    const std::vector<chat::ToolCall> calls = messages_.back().tool_calls;
    for (const chat::ToolCall& call : calls) {
      const std::string* command = commands_.Find(call.name);
      const std::optional<std::string> text =
          command != nullptr ? RunCommandFor(call, *command) : AskForResult(call);
      if (!text) return false;
      messages_.push_back({.role = chat::Role::kTool, .content = *text, .tool_call_id = call.id});
    }
    return true;
  }

  std::optional<std::string> RunCommandFor(const chat::ToolCall& call, const std::string& command) {
    SayDim(fmt::format("{}: {}", Printable(call.name), Printable(command)));
    const Result<CommandResult> result = RunToolCommand(command, call.arguments, ask_.interrupted);
    if (!result) Say(Printable(result.error().message()));
    if (!result || result->cancelled) return std::nullopt;
    SayDim(Printable(result->text));
    return result->text;
  }

  std::optional<std::string> AskForResult(const chat::ToolCall& call) {
    const LineEditor::Line line = editor_.Read(fmt::format("result of {}> ", Printable(call.name)));
    if (line.kind != LineEditor::Line::Kind::kText) return std::nullopt;
    return line.text;
  }

  // On a terminal words wrap whole.
  static void Say(std::string_view text) {
    if (!StderrIsTerminal()) {
      PrintError("{}\n", text);
      return;
    }
    TextWriter writer({.markdown = false,
                       .columns = [] { return TerminalColumns(STDERR_FILENO); },
                       .write = [](std::string_view piece) { PrintError("{}", piece); }});
    writer.Write(std::string(text) + "\n");
    writer.Finish();
  }

  void SayDim(std::string_view text) const {
    PrintError("{}", dim_.dim);
    Say(text);
    PrintError("{}", dim_.reset);
  }

  static constexpr int64_t kMaxAttachedBytes = int64_t{16} << 20;
  static constexpr size_t kMostOfLastMessage = 160;  // Bytes of it that are shown.
  static constexpr int kColumnsOfHelp = 95;          // In which every line of /help has room.

  ChatRuntime& runtime_;
  ChatRuntime::Ask ask_;
  std::vector<chat::JsonValue> tools_;
  ToolCommands commands_;
  bool quiet_;
  bool anyway_;
  AnswerPrinter printer_;
  const TypeAheadScope type_ahead_;  // In front of the editor, which goes back to the modes that it found.
  LineEditor editor_;
  ProgressBar prefill_bar_{"Reading"};
  Style dim_{StderrIsTerminal()};
  std::vector<chat::Message> messages_;
  std::string attached_;  // Files in front of the next message.
  std::string stopped_;   // Last message that the model's notice stopped.
  std::string initial_;   // Text that stands on the next line already.
  std::optional<Generation> last_;
  int64_t num_calls_ = 0;
  bool failed_ = false;
  bool left_ = false;
};

}  // namespace

int RunInteractiveChat(ChatRuntime& runtime, ChatRuntime::Ask ask, const std::string& system,
                       std::vector<chat::Message> last, std::vector<chat::JsonValue> tools,
                       ToolCommands commands, ChatManner manner, const std::string& first) {
  return Chat(runtime, std::move(ask), system, std::move(tools), std::move(commands), manner)
      .Run(std::move(last), first);
}

}  // namespace dsv4::apps
