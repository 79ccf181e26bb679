// `dsv4 ps`: the dsv4 processes of this machine that hold a model, as /proc shows them.
#include "apps/pull/ps_command.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "apps/shared/model_flags.h"
#include "apps/terminal/printable.h"
#include "apps/terminal/readable.h"
#include "apps/terminal/terminal.h"
#include "base/json.h"

namespace dsv4::apps {
namespace {

namespace fs = std::filesystem;

struct Process {
  int pid = 0;
  std::string command, model;
  std::vector<std::string> addresses;
  int64_t memory = 0;  // Resident bytes, mapped weights included.
  double seconds = 0;  // Since its start.
};

std::string Text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> Words(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream input(text);
  for (std::string word; std::getline(input, word, '\0');) words.push_back(word);
  return words;
}

// The value of an option among words: "-m X", "-mX", "--model X", "--model=X".
std::string ValueOf(const std::vector<std::string>& words, std::string_view brief, std::string_view full) {
  for (size_t i = 0; i < words.size() && words[i] != "--"; ++i) {
    const std::string& word = words[i];
    const std::string next = i + 1 < words.size() ? words[i + 1] : "";
    if (word == full || (!brief.empty() && word == brief)) return next;
    if (word.starts_with(full) && word.size() > full.size() && word[full.size()] == '=')
      return word.substr(full.size() + 1);
    if (!brief.empty() && !word.starts_with("--") && word.starts_with(brief))
      return word.substr(brief.size());
  }
  return {};
}

std::string VariableOf(const fs::path& process, std::string_view name) {
  for (const std::string& entry : Words(Text(process / "environ"))) {
    if (entry.starts_with(name) && entry.size() > name.size() && entry[name.size()] == '=')
      return entry.substr(name.size() + 1);
  }
  return {};
}

std::set<std::string> Sockets(const fs::path& process) {
  std::set<std::string> inodes;
  std::error_code error;
  for (fs::directory_iterator at(process / "fd", error), end; !error && at != end; at.increment(error)) {
    std::error_code gone;
    const std::string target = fs::read_symlink(at->path(), gone).string();
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  return inodes;
}

// "0100007F:1F90" of /proc/net/tcp: words of the address in the order of this machine's bytes.
std::string AddressOf(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos || colon % 8 != 0) return {};
  std::array<uint32_t, 4> words = {};
  for (size_t i = 0; i < colon / 8 && i < words.size(); ++i)
    words[i] = static_cast<uint32_t>(std::stoul(text.substr(8 * i, 8), nullptr, 16));
  std::array<char, INET6_ADDRSTRLEN> name = {};
  const bool six = colon > 8;
  ::inet_ntop(six ? AF_INET6 : AF_INET, words.data(), name.data(), name.size());
  return fmt::format("{}{}{}:{}", six ? "[" : "", name.data(), six ? "]" : "",
                     std::stoul(text.substr(colon + 1), nullptr, 16));
}

std::vector<std::string> Listening(const fs::path& process) {
  const std::set<std::string> sockets = Sockets(process);
  std::vector<std::string> addresses;
  for (const char* table : {"tcp", "tcp6"}) {
    std::istringstream lines(Text(process / "net" / table));
    std::string line;
    std::getline(lines, line);  // The names of the columns.
    while (std::getline(lines, line)) {
      std::istringstream fields(line);
      std::array<std::string, 10> field;
      for (std::string& each : field) fields >> each;
      constexpr std::string_view kListen = "0A";
      if (field[3] == kListen && sockets.contains(field[9])) addresses.push_back(AddressOf(field[1]));
    }
  }
  return addresses;
}

double SecondsSinceStart(const fs::path& process) {
  const std::string stat = Text(process / "stat");
  std::istringstream fields(stat.substr(std::min(stat.rfind(')') + 1, stat.size())));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  double up = 0;
  std::istringstream(Text("/proc/uptime")) >> up;
  return up - std::atof(field.c_str()) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

std::vector<Process> Processes() {
  // Commands that hold a model for longer than a moment.
  static constexpr std::array<std::string_view, 6> kHolders = {"serve", "run",      "bench",
                                                               "eval",  "diagnose", "logits"};
  std::vector<Process> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc", error)) {
    const std::string pid = entry.path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    std::error_code gone;
    const std::string program = fs::read_symlink(entry.path() / "exe", gone).filename().string();
    if (gone || (program != "dsv4" && program != "dsv4 (deleted)")) continue;
    const std::vector<std::string> words = Words(Text(entry.path() / "cmdline"));
    const auto command = std::ranges::find_if(
        words, [](const std::string& word) { return std::ranges::find(kHolders, word) != kHolders.end(); });
    if (command == words.end()) continue;
    Process process = {.pid = std::stoi(pid),
                       .command = *command,
                       .addresses = Listening(entry.path()),
                       .seconds = SecondsSinceStart(entry.path())};
    process.model = ValueOf(words, "-m", "--model");
    if (process.model.empty()) process.model = ValueOf(words, "", "--weights");
    if (process.model.empty()) process.model = VariableOf(entry.path(), "DSV4_MODEL");
    if (process.model.empty()) process.model = "the small model";
    if (const std::string path = ValueOf(words, "", "--unix-socket"); !path.empty())
      process.addresses.push_back(path);
    int64_t total = 0, resident = 0;
    std::istringstream(Text(entry.path() / "statm")) >> total >> resident;
    process.memory = resident * ::sysconf(_SC_PAGESIZE);
    found.push_back(std::move(process));
  }
  std::ranges::sort(found, {}, &Process::pid);
  return found;
}

}  // namespace

int RunPsCommand(bool json) {
  const std::vector<Process> processes = Processes();
  if (json) {
    Json list = Json::array();
    for (const Process& each : processes) {
      list.push_back({{"pid", each.pid},
                      {"command", each.command},
                      {"model", each.model},
                      {"addresses", each.addresses},
                      {"memory_bytes", each.memory},
                      {"seconds", each.seconds}});
    }
    fmt::print("{}\n", JsonText(list));
    return kExitOk;
  }
  size_t width = 5;
  for (const Process& each : processes) width = std::max(width, each.model.size());
  fmt::print("{:>8}  {:<8}  {:<{}}  {:>9}  {:<11}  {}\n", "PID", "COMMAND", "MODEL", width, "MEMORY", "FOR",
             "ADDRESS");
  for (const Process& each : processes) {
    fmt::print("{:>8}  {:<8}  {:<{}}  {:>9}  {:<11}  {}\n", each.pid, each.command, Printable(each.model),
               width, ReadableBytes(each.memory), ShortDuration(each.seconds),
               each.addresses.empty() ? "-" : Printable(fmt::format("{}", fmt::join(each.addresses, " "))));
  }
  return kExitOk;
}

}  // namespace dsv4::apps
