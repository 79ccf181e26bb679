// SIGBUS handler for mapped files that were cut: the process ends at once, or reads zeros until it ends in
// order.
#include "apps/shared/lost_file.h"

#include <unistd.h>

#include <csignal>
#include <string_view>

#include "apps/shared/model_flags.h"
#include "apps/terminal/terminal.h"
#include "io/mapped_file.h"

namespace dsv4::apps {
namespace {

void SayLost(std::string_view text) { static_cast<void>(!::write(STDERR_FILENO, text.data(), text.size())); }

void HandleBusError(int signal, siginfo_t* info, void*) {
  const char* path = io::MappedFileAt(info->si_addr);
  if (path ==
      nullptr) {  // A bug, or memory that two processes share. The touch is repeated and ends the process.
    std::signal(signal, SIG_DFL);
    return;
  }
  RestoreTerminal();
  SayLost("dsv4: ");
  SayLost(path);
  SayLost(": ");
  SayLost(io::kLostFileText);
  SayLost("\n");
  ::_exit(kExitBadInput);
}

void StandIn(int signal, siginfo_t* info, void* context) {
  if (!io::StandInForLostPages(info->si_addr)) HandleBusError(signal, info, context);
}

void HandleBusErrorsBy(void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction action = {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace

void ReportLostFiles() { HandleBusErrorsBy(HandleBusError); }

void GoOnWithoutLostFiles() { HandleBusErrorsBy(StandIn); }

}  // namespace dsv4::apps
