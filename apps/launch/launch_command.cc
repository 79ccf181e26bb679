// `dsv4 launch`: a server found or started, then the client run with its settings.
#include "apps/launch/launch_command.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "apps/launch/clients.h"
#include "apps/launch/local_server.h"
#include "apps/terminal/terminal.h"
#include "base/error_output.h"

namespace dsv4::apps {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// As a model's name where no server says one: with --alias '*' it answers to every name.
constexpr const char* kAnyModel = "deepseek-v4";

// Folder of what is only `launch`'s: $XDG_STATE_HOME/dsv4, else ~/.local/state/dsv4.
Result<std::string> StateFolder() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  if ((state == nullptr || *state == '\0') && (home == nullptr || *home == '\0'))
    return Error(FailedPrecondition("neither XDG_STATE_HOME nor HOME is set"));
  const fs::path folder = state != nullptr && *state != '\0' ? fs::path(state) / "dsv4"
                                                             : fs::path(home) / ".local" / "state" / "dsv4";
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return Error(FailedPrecondition(fmt::format("{}: {}", folder.string(), error.message())));
  return folder.string();
}

bool InPath(const std::string& program) {
  if (program.find('/') != std::string::npos) return access(program.c_str(), X_OK) == 0;
  const char* path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "/usr/bin:/bin" : path;
  while (true) {
    const size_t colon = rest.find(':');
    const std::string folder(rest.substr(0, colon));
    if (access(((folder.empty() ? "." : folder) + "/" + program).c_str(), X_OK) == 0) return true;
    if (colon == std::string_view::npos) return false;
    rest.remove_prefix(colon + 1);
  }
}

// Waits until the server of this process answers.
Result<std::string> WaitUntilServed(const LaunchOptions& options, const std::string& url,
                                    LocalServer& server) {
  ProgressBar bar("starting the server");
  const auto begin = Clock::now();
  while (true) {
    const double waited = std::chrono::duration<double>(Clock::now() - begin).count();
    if (Status status = server.Check(); !status.ok()) return Error(status);
    if (Result<std::string> model = ServedModel(url, options.api_key);
        model || model.error().code() != StatusCode::kUnavailable) {
      return model;
    }
    if (waited > options.wait_seconds) {
      return Error(Status(StatusCode::kDeadlineExceeded,
                          fmt::format("the server is not ready after {:.0f} s (--wait)", waited)));
    }
    bar.Update(0, 1, fmt::format("{:.0f} s", waited));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

Status WriteFiles(const ClientSetup& setup) {
  for (const auto& [path, text] : setup.files) {
    std::error_code error;
    fs::create_directories(fs::path(path).parent_path(), error);
    std::ofstream file(path, std::ios::trunc);
    file << text;
    file.close();
    if (!file) return FailedPrecondition(fmt::format("{}: cannot be written", path));
  }
  return {};
}

// Runs the client in the foreground. The terminal, and with it Ctrl-C, is the client's.
Result<int> RunClient(const ClientSetup& setup) {
  std::vector<std::string> line = {setup.program};
  line.insert(line.end(), setup.arguments.begin(), setup.arguments.end());
  std::vector<char*> arguments;
  for (std::string& word : line) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  struct sigaction ignore {};
  struct sigaction interrupt {};
  struct sigaction quit {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGINT, &ignore, &interrupt);
  sigaction(SIGQUIT, &ignore, &quit);
  const pid_t process = fork();
  if (process == 0) {
    sigaction(SIGINT, &interrupt, nullptr);
    sigaction(SIGQUIT, &quit, nullptr);
    for (const auto& [name, value] : setup.environment) setenv(name.c_str(), value.c_str(), 1);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  int ended = 0;
  while (process > 0 && waitpid(process, &ended, 0) < 0 && errno == EINTR) {
  }
  sigaction(SIGINT, &interrupt, nullptr);
  sigaction(SIGQUIT, &quit, nullptr);
  if (process < 0) return Error(ResourceExhausted(fmt::format("fork: {}", std::strerror(errno))));
  static_assert(kExitInterrupted == 128 + SIGINT);
  return WIFEXITED(ended) ? WEXITSTATUS(ended) : 128 + WTERMSIG(ended);
}

}  // namespace

int RunLaunchCommand(const LaunchOptions& options) {
  const Result<std::string> folder = StateFolder();
  if (!folder) return Fail(folder.error(), kExitRunFailed);
  std::string url = options.url.empty() ? fmt::format("http://127.0.0.1:{}", options.port) : options.url;
  while (url.ends_with('/')) url.pop_back();
  const std::string key = options.api_key.empty() ? "none" : options.api_key;
  const auto setup_for = [&](const std::string& model) {
    Result<ClientSetup> setup = SetupOf(options.client, {url, model, key}, *folder);
    if (setup) {
      if (!options.program.empty()) setup->program = options.program;
      setup->arguments.insert(setup->arguments.end(), options.client_arguments.begin(),
                              options.client_arguments.end());
    }
    return setup;
  };
  Result<ClientSetup> setup = setup_for(kAnyModel);
  if (!setup) return Fail(setup.error(), kExitBadUsage);
  if (!options.print && !InPath(setup->program)) {
    return Fail(
        NotFound(fmt::format("{}: no such program in PATH; --print shows its settings", setup->program)),
        kExitRunFailed);
  }

  Result<std::string> model = ServedModel(url, options.api_key);
  if (options.print) {
    setup = setup_for(model ? *model : kAnyModel);
    if (!model) fmt::print("dsv4 serve --port {} --alias '*' &\n", options.port);
    fmt::print("{}", AsShell(*setup));
    return kExitOk;
  }
  std::optional<LocalServer> server;
  if (!model && model.error().code() == StatusCode::kUnavailable && options.url.empty()) {
    // Not on the command line, which every process may read.
    if (!options.api_key.empty()) setenv("DSV4_SERVE_API_KEY", options.api_key.c_str(), 1);
    Result<LocalServer> started =
        LocalServer::Start(options.port, options.serve_words, *folder + "/serve.log");
    if (!started) return Fail(started.error(), kExitRunFailed);
    server.emplace(std::move(*started));
    model = WaitUntilServed(options, url, *server);
  }
  if (!model) return Fail(model.error(), kExitRunFailed);
  PrintError("dsv4: {} on {} at {}{}\n", options.client, *model, url,
             server ? fmt::format("; its log is {}/serve.log", *folder) : "");
  setup = setup_for(*model);
  if (const Status written = WriteFiles(*setup); !written.ok()) return Fail(written, kExitRunFailed);
  const Result<int> code = RunClient(*setup);
  if (!code) return Fail(code.error(), kExitRunFailed);
  return *code;
}

}  // namespace dsv4::apps
