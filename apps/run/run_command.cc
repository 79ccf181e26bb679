// `dsv4 run`: prompt from words and pipe, one answer with calls of tools, or the chat.
#include "apps/run/run_command.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <iterator>
#include <random>

#include "apps/run/interactive_chat.h"
#include "apps/run/tool_commands.h"
#include "apps/shared/chat_file.h"
#include "apps/shared/chat_runtime.h"
#include "apps/shared/last_conversation.h"
#include "apps/shared/run_report.h"
#include "apps/shared/speculation_flag.h"
#include "apps/terminal/answer_printer.h"
#include "apps/terminal/load_bar.h"
#include "apps/terminal/printable.h"
#include "apps/terminal/terminal.h"
#include "base/error_output.h"
#include "base/log.h"
#include "base/text.h"
#include "base/utf8.h"
#include "session/answer_options.h"

namespace dsv4::apps {
namespace {

// Whether a tool of a file, in either form of OpenAI's, has this name.
bool IsToolOf(const chat::JsonValue& tool, const std::string& name) {
  const chat::JsonValue* function = tool.Find("function");
  const chat::JsonValue* own = (function != nullptr ? *function : tool).Find("name");
  return own != nullptr && own->is_string() && own->text() == name;
}

using Clock = std::chrono::steady_clock;

constexpr int64_t kMaxCalls = 100;  // Calls for one question: a model that goes round in circles ends.

// Text that comes through a pipe or from a file on standard input, behind PROMPT. A service or a cron job has
// a device or a socket there, which is not meant to be read.
Status AppendPiped(std::string& prompt) {
  struct stat input = {};
  if (::fstat(STDIN_FILENO, &input) != 0 || !(S_ISFIFO(input.st_mode) || S_ISREG(input.st_mode))) return {};
  pollfd waiting = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  constexpr int kPatienceMs = 1000;
  if (::poll(&waiting, 1, kPatienceMs) == 0) {
    PrintError("dsv4: waiting for standard input, which is a pipe (</dev/null: there is none)\n");
  }
  const std::string piped(std::istreambuf_iterator<char>(std::cin), {});
  DSV4_RETURN_IF_ERROR(CheckUtf8("standard input", piped));
  if (!piped.empty()) prompt += "\n\n" + piped;
  return {};
}

}  // namespace

namespace {

ChatRuntime::Ask MakeAsk(const RunOptions& options, std::optional<int64_t> own_limit) {
  ChatRuntime::Ask ask;
  ask.mode = options.thinking_mode == "chat" ? chat::ThinkingMode::kChat : chat::ThinkingMode::kThinking;
  if (!options.effort.empty()) ask.effort = options.effort;
  ask.sampling = options.sampling;
  if (!options.seed_given) {
    std::random_device device;
    ask.sampling.seed = (static_cast<uint64_t>(device()) << 32) | device();
  }
  constexpr int64_t kMostRawTokens = 4096;
  ask.max_tokens = options.max_tokens.value_or(
      options.raw ? kMostRawTokens
                  : session::DefaultMaxTokens(
                        {}, ask.mode, options.effort.empty() ? std::nullopt : std::optional(options.effort)));
  if (own_limit && !options.max_tokens) ask.max_tokens = std::min(*ask.max_tokens, *own_limit);
  // As DeepSeek's own service has it.
  if (!options.top_p_given && !options.tools_path.empty() && ask.mode == chat::ThinkingMode::kThinking)
    ask.sampling.top_p = session::AnswerDefaults().top_p_thinking_with_tools;
  ask.num_logprobs = options.num_logprobs;
  ask.stop = options.stop;
  ask.interrupted = [] { return InterruptScope::Take(); };
  return ask;
}

// Findings of --verify, said on standard error. Ctrl-C (under an InterruptScope) ends the wait for it.
std::optional<diag::VerifySummary> Verified(const ChatRuntime& runtime, bool& interrupted) {
  if (runtime.verifier() == nullptr) return std::nullopt;
  const diag::VerifySummary summary =
      runtime.verifier()->Finish([&] { return interrupted = InterruptScope::Take() || interrupted; });
  PrintError("{}\n", Printable(diag::ToText(summary)));
  return summary;
}

bool Drifted(const std::optional<diag::VerifySummary>& verify) {
  return verify && verify->verdict() == diag::VerifyVerdict::kDrift;
}

// Whether commands can answer all calls of an answer, and there are any.
bool AllAllowed(const Generation& answer, const ToolCommands& commands) {
  const std::vector<chat::ParsedCall>& calls = answer.completion.message.tool_calls;
  return !answer.cancelled() && !calls.empty() &&
         std::all_of(calls.begin(), calls.end(),
                     [&](const chat::ParsedCall& call) { return commands.Find(call.name) != nullptr; });
}

// Adds the answer and the results of its calls to `messages`.
Status AnswerCalls(const Generation& answer, const ToolCommands& commands, const RunOptions& options,
                   const ChatRuntime::Ask& ask, std::vector<chat::Message>& messages, int64_t& num_calls) {
  messages.push_back(CallingMessage(answer.completion.message, num_calls));
  if (num_calls > kMaxCalls) {
    return ResourceExhausted(fmt::format("--tool-command: the model made more than {}; the last is of {}",
                                         Counted(kMaxCalls, "call"),
                                         Printable(messages.back().tool_calls.back().name)));
  }
  const std::vector<chat::ToolCall> calls = messages.back().tool_calls;
  for (const chat::ToolCall& call : calls) {
    const std::string& command = *commands.Find(call.name);
    if (!options.quiet) PrintError("{}: {}\n", Printable(call.name), Printable(command));
    DSV4_ASSIGN_OR_RETURN_STATUS(const CommandResult result,
                                 RunToolCommand(command, call.arguments, ask.interrupted));
    if (result.cancelled) return {StatusCode::kCancelled, fmt::format("{}: interrupted", command)};
    messages.push_back({.role = chat::Role::kTool, .content = result.text, .tool_call_id = call.id});
  }
  return {};
}

int RunOnce(ChatRuntime& runtime, const RunOptions& options, const ToolCommands& commands,
            ChatRuntime::Ask ask, double load_seconds) {
  Result<std::string> prompt = ReadPrompt(options);
  if (prompt && options.prompt && *options.prompt != "-") {
    if (const Status piped = AppendPiped(*prompt); !piped.ok()) return Fail(piped, kExitBadInput);
  }
  if (!prompt) return Fail(prompt.error(), kExitBadInput);
  if (options.messages_path.empty() && prompt->find_first_not_of(" \t\r\n") == std::string::npos) {
    return Fail(InvalidArgument(*options.prompt == "-" ? "standard input: empty, want a question"
                                                       : "PROMPT: empty, want a question"),
                kExitBadUsage);
  }

  const InterruptScope interrupts;
  ProgressBar prefill_bar("Reading");
  AnswerPrinter printer = MakeAnswerPrinter(
      options.reasoning, [&](std::string_view tool) { return commands.Find(tool) != nullptr; });
  ask.on_prefill = [&](int64_t done, int64_t total) {
    if (done < total && !options.quiet)
      prefill_bar.Update(done, total);
    else
      prefill_bar.Clear();
  };
  if (!options.json) ask.on_delta = [&](const chat::Delta& delta) { printer.Print(delta); };

  std::string notice;
  Result<Generation> answer = Error(Internal("not run"));
  if (options.raw) {
    answer = runtime.Continue(*prompt, ask);
  } else {
    Result<std::vector<chat::Message>> messages = MakeMessages(options, *prompt);
    if (!messages) return Fail(messages.error(), kExitBadInput);
    notice = runtime.NoticeOn(*messages);
    if (!notice.empty() && !options.json) {
      if (!options.anyway) {
        PrintError("dsv4: {} (--anyway answers all the same)\n", Printable(notice));
        return kExitRunFailed;
      }
      if (!options.quiet) PrintError("dsv4: {}\n", Printable(notice));
    }
    answer = runtime.Respond(*messages, ask);
    int64_t num_calls = 0;
    while (answer && AllAllowed(*answer, commands)) {
      prefill_bar.Clear();
      printer.EndAnswer();
      const Status answered = AnswerCalls(*answer, commands, options, ask, *messages, num_calls);
      if (!answered.ok()) return Fail(answered, kExitRunFailed);
      answer = runtime.Respond(*messages, ask);
    }
    if (answer && !answer->cancelled()) {
      messages->push_back(CallingMessage(answer->completion.message, num_calls));
      KeepConversation(*messages);
    }
  }
  prefill_bar.Clear();
  if (!answer) return Fail(answer.error(), kExitRunFailed);

  if (!options.json) {
    printer.EndAnswer();
    // Even with -q: what was cut looks finished.
    if (const std::string cut = CutLine(*answer, ask.max_tokens); !cut.empty()) PrintError("dsv4: {}\n", cut);
    if (!options.quiet) {
      PrintError("{}, on {}\n{}, seed {}\n", SpeedLine(*answer), runtime.backend_name(),
                 SettingsLine(runtime.profile(), ask.mode, ask.effort, ask.sampling), ask.sampling.seed);
    }
  }
  if (const Status dumped = runtime.FinishDump(); !dumped.ok()) return Fail(dumped, kExitRunFailed);
  bool interrupted = answer->cancelled();
  const std::optional<diag::VerifySummary> verify = Verified(runtime, interrupted);
  if (options.json) fmt::print("{}\n", RunReportJson(runtime, *answer, ask, load_seconds, notice, verify));
  if (interrupted) return kExitInterrupted;
  return Drifted(verify) ? kExitRunFailed : kExitOk;
}

}  // namespace

int RunRunCommand(const RunOptions& options,
                  const std::function<Result<ops::Backend>(const ModelFlags&)>& make_backend) {
  const bool has_prompt = options.prompt || !options.messages_path.empty();
  if (!has_prompt && (options.json || options.raw)) {
    return Fail(InvalidArgument(fmt::format("run {}: no PROMPT", options.json ? "--json" : "--raw")),
                kExitBadUsage);
  }
  for (const auto& [name, text] :
       {std::pair{"PROMPT", options.prompt.value_or("")}, std::pair{"--system", options.system}}) {
    if (const Status status = CheckUtf8(name, text); !status.ok()) return Fail(status, kExitBadUsage);
  }
  if (const Status status = session::CheckStop("--stop", options.stop); !status.ok())
    return Fail(status, kExitBadUsage);
  if (options.raw && (!options.system.empty() || !options.messages_path.empty() ||
                      !options.tools_path.empty() || !options.effort.empty())) {
    return Fail(
        InvalidArgument("run --raw: takes PROMPT alone, not --system, --messages, --tools or --effort"),
        kExitBadUsage);
  }
  if (options.go_on && (options.raw || !options.system.empty() || !options.messages_path.empty())) {
    return Fail(
        InvalidArgument("run --continue: the last conversation goes on, so no --raw, --system or --messages"),
        kExitBadUsage);
  }
  if (options.model.group != nullptr && (options.verify_every > 0 || !options.dump_path.empty())) {
    return Fail(InvalidArgument("run --verify, --dump: see one rank's part only; want no --ranks"),
                kExitBadUsage);
  }
  if (options.verify_every > 0 && options.model.backend == "reference") {
    return Fail(
        InvalidArgument("run --verify: the backend is the reference itself; wanted another --backend"),
        kExitBadUsage);
  }
  if (options.interactive &&
      (options.json || options.raw || !options.messages_path.empty() || options.prompt == "-")) {
    return Fail(InvalidArgument("run --interactive: a chat, so no --json, --raw, --messages or PROMPT '-'; "
                                "/load in the chat reads a conversation"),
                kExitBadUsage);
  }
  if (options.content.any() && (!has_prompt || options.interactive)) {
    return Fail(
        InvalidArgument("run --json-schema, --json-object, --regex, --choice, --grammar, --structural-tag: "
                        "need PROMPT or --messages"),
        kExitBadUsage);
  }
  if ((!has_prompt || options.interactive) && !options.dump_path.empty()) {
    return Fail(InvalidArgument("run --dump: needs PROMPT or --messages; a dump holds one answer"),
                kExitBadUsage);
  }
  Result<std::optional<grammar::ContentRule>> rule = ReadContentRule(options.content);
  // Rule from a file, or of the command line itself.
  if (!rule) return Fail(rule.error(), options.content.from_file() ? kExitBadInput : kExitBadUsage);

  std::vector<chat::JsonValue> tools;
  if ((!has_prompt || options.interactive || !options.tool_commands.empty()) && !options.tools_path.empty()) {
    Result<std::vector<chat::JsonValue>> read = ReadToolsFile(options.tools_path);
    if (!read) return Fail(read.error(), kExitBadInput);
    tools = std::move(*read);
  }

  std::vector<chat::Message> last;
  if (options.go_on) {
    Result<std::vector<chat::Message>> read = ReadLastConversation();
    if (!read) return Fail(read.error(), kExitBadInput);
    last = std::move(*read);
  }

  const Result<ToolCommands> commands = ToolCommands::Parse(options.tool_commands);
  if (!commands) return Fail(commands.error(), kExitBadUsage);
  if (!commands->empty() && (options.json || !options.dump_path.empty())) {
    return Fail(InvalidArgument("run --tool-command: goes on to another answer, so no --json or --dump, "
                                "which are of one"),
                kExitBadUsage);
  }

  for (const auto& entry : commands->all()) {
    const auto has_name = [&](const chat::JsonValue& tool) { return IsToolOf(tool, entry.first); };
    if (!options.tools_path.empty() && std::ranges::none_of(tools, has_name))
      LogWarning(
          fmt::format("--tool-command {}: no tool of {} has that name", entry.first, options.tools_path));
  }

  // Neither a dump nor --verify can see steps of several rows of one sequence.
  const Result<speculation::Choice> speculation =
      ParseSpeculation(options.speculation, options.verify_every > 0);
  if (!speculation) return Fail(speculation.error(), kExitBadUsage);

  const Clock::time_point start = Clock::now();
  Result<std::unique_ptr<ChatRuntime>> runtime = Error(Internal("not loaded"));
  {
    LoadBar load_bar(/*shown=*/!options.quiet);
    runtime = ChatRuntime::Load({.model = options.model,
                                 .revision = options.revision,
                                 .raw = options.raw,
                                 .verify_every = options.verify_every,
                                 .speculation = *speculation,
                                 .dump_path = options.dump_path,
                                 .make_backend = make_backend},
                                load_bar.callback());
  }
  if (!runtime) return Fail(runtime.error(), LoadExitCode(runtime.error()));
  if (const Status known = (*runtime)->text().CheckEffort(options.effort); !known.ok())
    return Fail(known, kExitBadUsage);
  const double load_seconds = std::chrono::duration<double>(Clock::now() - start).count();

  const Status valid =
      sampling::ValidateSamplingParams(options.sampling, (*runtime)->model().config().vocab_size);
  if (!valid.ok()) return Fail(valid, kExitBadUsage);
  ChatRuntime::Ask ask = MakeAsk(options, (*runtime)->text().card.max_new_tokens);
  ask.rule = std::move(*rule);
  if (has_prompt && !options.interactive) {
    return RunOnce(**runtime, options, *commands, std::move(ask), load_seconds);
  }
  const int exit_code = RunInteractiveChat(
      **runtime, std::move(ask), options.system, std::move(last), std::move(tools), *commands,
      {.reasoning = options.reasoning, .quiet = options.quiet, .anyway = options.anyway},
      options.prompt.value_or(""));
  const InterruptScope interrupts;
  bool interrupted = false;
  const std::optional<diag::VerifySummary> verify = Verified(**runtime, interrupted);
  if (interrupted) return kExitInterrupted;
  return Drifted(verify) ? kExitRunFailed : exit_code;
}

}  // namespace dsv4::apps
