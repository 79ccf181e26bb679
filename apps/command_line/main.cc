// The dsv4 binary: command line in, exit code out. Each command stands in its own folder; this file only
// parses.
#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <iterator>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "apps/command_line/command.h"
#include "apps/command_line/settings.h"
#include "apps/command_line/shared_flags.h"
#include "apps/command_line/usage.h"
#include "apps/shared/lost_file.h"
#include "apps/terminal/terminal.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_variables.h"
#include "base/error_output.h"
#include "base/line_writer.h"
#include "base/log.h"

namespace dsv4::apps {
namespace {

int Main(int argc, char** argv) {
  CLI::App app("dsv4: a native inference engine for DeepSeek-V4");
  app.set_help_flag("-h,--help", "What most people need; --help-all: everything");
  app.set_help_all_flag("--help-all", "Every option");
  app.set_version_flag("-V,--version", VersionText());
  app.require_subcommand(1);
  app.fallthrough();
  ModelFlags model;
  AddModelFlags(app, model);
  std::string log_level = "warning";
  app.add_option("--log-level", log_level, "What goes to standard error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}))
      ->capture_default_str();
  app.add_flag_callback(
      "-v,--verbose", [&log_level] { log_level = "info"; }, "The same as --log-level info");
  Commands commands(app, model);
  for (const Register add : RegisterFunctions()) add(commands);
  Settings settings(app);
  DescribeUsage(commands, settings);

  std::vector<std::string> words = ExpandHelpWords(argc, argv);
  settings.SetWords(words);
  try {
    // CLI11 wants the words without the program's name, the last one first.
    app.name("dsv4");
    std::vector<std::string> reversed(words.rbegin(), std::prev(words.rend()));
    app.parse(std::move(reversed));
    RefuseEmptyTexts(app);
  } catch (const CLI::ParseError& error) {
    // Help on a command that is none.
    if (const std::string unknown = UnknownHelp(commands, settings);
        error.get_exit_code() == 0 && !unknown.empty()) {
      PrintError("{}", unknown);
      return kExitBadUsage;
    }
    const int code = app.exit(error);
    return code == 0 ? kExitOk : kExitBadUsage;
  }
  SetLogLevel(log_level);
  for (const std::string& mistyped : settings.MistypedVariables(*app.get_subcommands().front()))
    LogWarning(mistyped);
  if (const Status known = backend::CheckCpuVariables(); !known.ok()) return Fail(known, kExitBadUsage);
  if (const auto known = backend::ReadCudaVariables(); !known) return Fail(known.error(), kExitBadUsage);
  return commands.Dispatch(argc, argv);
}

}  // namespace
}  // namespace dsv4::apps

namespace {

// Exceptions: only two may come from any code and any thread: this one, and that of a thread that cannot be
// started. Says so without asking for memory.
void Say(std::string_view text) { static_cast<void>(dsv4::WriteQuietly(STDERR_FILENO, text, 1000)); }
void SayThatMemoryRanOut() { Say("dsv4: memory ran out\n"); }

std::terminate_handler default_terminate = nullptr;

// Output counts as written only when the system has taken it: a disk may be full.
int WithWhatWasWritten(int exit_code) {
  std::cout.flush();
  const bool flushed = std::fflush(stdout) == 0;
  const int error = errno;
  if (flushed && std::ferror(stdout) == 0) return exit_code;
  Say("dsv4: standard output: ");
  Say(flushed ? "not all of it could be written" : std::strerror(error));
  Say("\n");
  return exit_code == dsv4::apps::kExitOk ? dsv4::apps::kExitRunFailed : exit_code;
}

[[noreturn]] void Terminate() {
  try {
    if (const std::exception_ptr exception = std::current_exception()) std::rethrow_exception(exception);
  } catch (const std::bad_alloc&) {
    SayThatMemoryRanOut();
    ::_exit(dsv4::apps::kExitRunFailed);
  } catch (const std::exception& error) {
    const auto* const system = dynamic_cast<const std::system_error*>(&error);
    const bool no_thread = system != nullptr && system->code() == std::errc::resource_unavailable_try_again;
    Say("dsv4: ");
    // Asio's exceptions are not of this library, but say the same.
    Say(no_thread ? "no thread could be started: no memory for its stack, or too many threads"
                  : error.what());
    Say("\n");
    ::_exit(dsv4::apps::kExitRunFailed);
  } catch (...) {  // A bug: as ever.
  }
  default_terminate();
  std::abort();
}

// A thread's stack is as long as the limit says; with one that is too short the program would end without a word.
// So it is made longer. False, and a word, where the system does not let it.
bool HasRoomForStacks() {
  constexpr rlim_t kLeast = rlim_t{1} << 20;
  constexpr rlim_t kUsual = rlim_t{8} << 20;
  rlimit stack = {};
  if (::getrlimit(RLIMIT_STACK, &stack) != 0 || stack.rlim_cur >= kLeast) return true;
  const rlim_t got = stack.rlim_cur;
  stack.rlim_cur = std::min(stack.rlim_max, kUsual);
  pthread_attr_t threads;
  if (stack.rlim_cur < kLeast || ::setrlimit(RLIMIT_STACK, &stack) != 0 ||
      ::pthread_attr_init(&threads) != 0) {
    Say("dsv4: stack: got a limit of ");
    Say(std::to_string(got >> 10));
    Say(" KiB, wanted at least 1024 (ulimit -s)\n");
    return false;
  }
  (void)::pthread_attr_setstacksize(&threads, stack.rlim_cur);
  (void)::pthread_setattr_default_np(&threads);
  (void)::pthread_attr_destroy(&threads);
  return true;
}

// Each of malloc's arenas wants 128 MiB of addresses. A thread without room for one asks the system for every small piece of
// memory. A step then takes a hundred times as long, so as many as fit into a quarter of a limit serve all threads.
void ShareArenasBelowALimit() {
  constexpr rlim_t kArena = rlim_t{128} << 20;
  rlimit addresses = {};
  if (::getrlimit(RLIMIT_AS, &addresses) != 0 || addresses.rlim_cur == RLIM_INFINITY) return;
  const rlim_t fit = std::clamp(addresses.rlim_cur / 4 / kArena, rlim_t{1}, rlim_t{1000});
  (void)::mallopt(M_ARENA_MAX, static_cast<int>(fit));
}

// Before the constructors of static objects, which may find no memory either; and for other threads.
__attribute__((constructor(101))) void InstallTerminate() {
  default_terminate = std::set_terminate(Terminate);
}

}  // namespace

int main(int argc, char** argv) {
  if (!HasRoomForStacks()) return dsv4::apps::kExitRunFailed;
  ShareArenasBelowALimit();
  dsv4::apps::ReportLostFiles();
  // A file that may not grow is an error of its write, as a full disk is.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    const int code = WithWhatWasWritten(dsv4::apps::Main(argc, argv));
    if (code == dsv4::apps::kExitInterrupted) dsv4::apps::EndByInterrupt();
    return code;
  } catch (const std::bad_alloc&) {
    SayThatMemoryRanOut();
    return dsv4::apps::kExitRunFailed;
  } catch (const std::system_error&) {
    // fmt throws it where a file takes no more.
    if (std::ferror(stdout) == 0) throw;
    return WithWhatWasWritten(dsv4::apps::kExitRunFailed);
  }
}
