// Line editor of the chat over libedit: keys, pastes, history, search and resizing.
#include "apps/terminal/line_editor.h"

#include <fcntl.h>
#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <clocale>
#include <cstdio>
#include <cwchar>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>

#include "apps/terminal/line_drawing.h"
#include "apps/terminal/state_path.h"
#include "apps/terminal/terminal.h"
#include "base/error_output.h"
#include "base/json.h"

namespace dsv4::apps {
namespace {

constexpr int kHistoryLines = 1000;
constexpr wchar_t kInterruptKey = 0x03;
constexpr int kRestOfPasteMilliseconds = 300;
constexpr wchar_t kEscape = 0x1b;
// Sequences that no terminal sends: the ways in which our own key functions call libedit's.
constexpr const wchar_t* kAcceptKey = L"\x1b[9001~";
constexpr const wchar_t* kInitialKey = L"\x1b[9002~";
constexpr const wchar_t* kPreviousKey = L"\x1b[9003~";
constexpr const wchar_t* kNextKey = L"\x1b[9004~";

// An ESC that nothing follows for so long was the key, not the start of a sequence.
constexpr int kEscapeMilliseconds = 30;
// In which a terminal says where its cursor is, if it ever does.
constexpr int kAnswerMilliseconds = 200;

struct Binding {
  const wchar_t* keys;
  const wchar_t* command;
};
// Sequences that terminals send for keys that libedit does not bind by itself. A sequence that is not here
// types nothing.
constexpr Binding kBindings[] = {
    {L"\r", L"dsv4-enter"},
    {L"\n", L"dsv4-enter"},
    {L"\x1b\r", L"dsv4-newline"},
    {L"\x1b\n", L"dsv4-newline"},
    {L"\x1b[13;2u", L"dsv4-newline"},
    {L"\x1b[27;2;13~", L"dsv4-newline"},
    {L"\x1b[200~", L"dsv4-paste"},
    {L"\x03", L"dsv4-interrupt"},
    {L"\x04", L"dsv4-delete-or-end"},
    {L"\t", L"dsv4-complete"},
    {L"\x1b[A", L"dsv4-up"},
    {L"\x1bOA", L"dsv4-up"},
    {L"\x1b[B", L"dsv4-down"},
    {L"\x1bOB", L"dsv4-down"},
    {L"\x1b[C", L"ed-next-char"},
    {L"\x1bOC", L"ed-next-char"},
    {L"\x1b[D", L"ed-prev-char"},
    {L"\x1bOD", L"ed-prev-char"},
    {L"\x1b[H", L"ed-move-to-beg"},
    {L"\x1bOH", L"ed-move-to-beg"},
    {L"\x1b[1~", L"ed-move-to-beg"},
    {L"\x1b[7~", L"ed-move-to-beg"},
    {L"\x1b[F", L"ed-move-to-end"},
    {L"\x1bOF", L"ed-move-to-end"},
    {L"\x1b[4~", L"ed-move-to-end"},
    {L"\x1b[8~", L"ed-move-to-end"},
    {L"\x1b[3~", L"ed-delete-next-char"},
    {L"\x1b[1;5C", L"em-next-word"},
    {L"\x1b[1;3C", L"em-next-word"},
    {L"\x1b[1;5D", L"ed-prev-word"},
    {L"\x1b[1;3D", L"ed-prev-word"},
    {L"\x12", L"em-inc-search-prev"},
    {L"\x13", L"em-inc-search-next"},
    {L"\x0c", L"dsv4-clear"},
    {kAcceptKey, L"ed-newline"},
    {kInitialKey, L"dsv4-initial"},
    {kPreviousKey, L"ed-prev-history"},
    {kNextKey, L"ed-next-history"},
};

bool IsBound(const std::wstring& keys) {
  return std::any_of(std::begin(kBindings), std::end(kBindings),
                     [&](const Binding& binding) { return keys == binding.keys; });
}

std::string ToUtf8(std::wstring_view text) {
  std::string bytes;
  for (const wchar_t character : text) {
    std::array<utf8proc_uint8_t, 4> encoded = {};
    const utf8proc_ssize_t length =
        utf8proc_encode_char(static_cast<utf8proc_int32_t>(character), encoded.data());
    for (utf8proc_ssize_t i = 0; i < length; ++i) bytes += static_cast<char>(encoded[static_cast<size_t>(i)]);
  }
  return bytes;
}

std::wstring FromUtf8(std::string_view text) {
  std::wstring characters;
  for (size_t at = 0; at < text.size();) {
    utf8proc_int32_t point = 0;
    const utf8proc_ssize_t length =
        utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                         static_cast<utf8proc_ssize_t>(text.size() - at), &point);
    characters += length > 0 ? static_cast<wchar_t>(point) : L'\xfffd';
    at += length > 0 ? static_cast<size_t>(length) : 1;
  }
  return characters;
}

// libedit measures and draws characters by the locale. The "C" locale of a bare machine has none but ASCII,
// though its terminal has.
void UseLocaleOfTerminal() {
  std::setlocale(LC_CTYPE, "");
  if (MB_CUR_MAX == 1 && std::string_view(nl_langinfo(CODESET)) == "ANSI_X3.4-1968") {
    std::setlocale(LC_CTYPE, "C.UTF-8");
  }
}

}  // namespace

class LineEditor::Impl {
 public:
  Impl(std::string history_path, Completer completer)
      : history_path_(std::move(history_path)), completer_(std::move(completer)) {
    if (!StdinIsTerminal() || !(StdoutIsTerminal() || StderrIsTerminal())) return;
    UseLocaleOfTerminal();
    if (TerminalCanMoveCursor()) StartEditor();
    LoadHistory();
  }

  ~Impl() {
    if (editor_ != nullptr) el_end(editor_);
    if (history_ != nullptr) history_wend(history_);
    if (libedit_output_ != nullptr) std::fclose(libedit_output_);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Line Read(std::string_view prompt, std::string_view initial) {
    return editor_ != nullptr ? ReadEdited(prompt, initial) : ReadPlain(prompt);
  }

  void AddHistory(const std::string& text) {
    if (text.empty() || text == last_history_) return;
    Remember(text);
    if (history_path_.empty()) return;
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(history_path_).parent_path(), ignored);
    // One write of one line, so that chats at the same time do not mix theirs. Other users do not read it.
    const int file =
        ::open(history_path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
    if (file < 0) return;
    const std::string line = JsonText(Json(text)) + "\n";
    static_cast<void>(!::write(file, line.data(), line.size()));
    ::close(file);
  }

 private:
  static int TerminalFile() { return StdoutIsTerminal() ? STDOUT_FILENO : STDERR_FILENO; }

  static ssize_t PassBell(void*, const char* bytes, size_t size) {
    if (std::string_view(bytes, size).find('\a') != std::string_view::npos) WriteToTerminal("\a");
    return static_cast<ssize_t>(size);
  }

  static Impl& Of(EditLine* editor) {
    Impl* self = nullptr;
    el_wget(editor, EL_CLIENTDATA, &self);
    return *self;
  }

  void StartEditor() {
    // Output of libedit goes nowhere, but for its bell.
    const cookie_io_functions_t bell = {
        .read = nullptr, .write = PassBell, .seek = nullptr, .close = nullptr};
    libedit_output_ = ::fopencookie(nullptr, "w", bell);
    if (libedit_output_ == nullptr) return;
    std::setvbuf(libedit_output_, nullptr, _IONBF, 0);
    editor_ = el_init_fd("dsv4", stdin, libedit_output_, stderr, STDIN_FILENO, TerminalFile(), STDERR_FILENO);
    if (editor_ == nullptr) return;
    history_ = history_winit();
    HistEventW event = {};
    history_w(history_, &event, H_SETSIZE, kHistoryLines);
    el_wset(editor_, EL_CLIENTDATA, this);
    // Between lines libedit would turn on what a TypeAheadScope turned off: keys that come then would be
    // edited by the terminal.
    el_wset(editor_, EL_SETTY, L"-x", L"-icanon", L"-echo", nullptr);
    el_wset(editor_, EL_EDITOR, L"emacs");
    el_wset(
        editor_, EL_PROMPT, +[](EditLine* editor) { return Of(editor).prompt_.data(); });
    el_wset(
        editor_, EL_GETCFN, +[](EditLine* editor, wchar_t* out) { return Of(editor).GetKey(out); });
    el_wset(editor_, EL_HIST, history_w, history_);
    const auto add = [&](const wchar_t* name, unsigned char (*function)(EditLine*, wint_t)) {
      el_wset(editor_, EL_ADDFN, name, L"", function);
    };
    add(L"dsv4-enter", [](EditLine* editor, wint_t) { return Of(editor).Enter(); });
    add(L"dsv4-newline", [](EditLine* editor, wint_t) { return Of(editor).Insert(L"\n"); });
    add(L"dsv4-paste", [](EditLine* editor, wint_t) { return Of(editor).Paste(); });
    add(L"dsv4-initial", [](EditLine* editor, wint_t) { return Of(editor).Insert(Of(editor).initial_); });
    add(L"dsv4-interrupt", [](EditLine* editor, wint_t) { return Of(editor).Interrupt(); });
    add(L"dsv4-delete-or-end", [](EditLine* editor, wint_t) { return Of(editor).DeleteOrEnd(); });
    add(L"dsv4-complete", [](EditLine* editor, wint_t) { return Of(editor).Complete(); });
    add(L"dsv4-clear", [](EditLine* editor, wint_t) { return Of(editor).ClearScreen(); });
    add(L"dsv4-up", [](EditLine* editor, wint_t) { return Of(editor).MoveLine(-1); });
    add(L"dsv4-down", [](EditLine* editor, wint_t) { return Of(editor).MoveLine(1); });
    for (const Binding& binding : kBindings)
      el_wset(editor_, EL_BIND, binding.keys, binding.command, nullptr);
  }

  Line ReadEdited(std::string_view prompt, std::string_view initial) {
    prompt_ = FromUtf8(prompt);
    initial_ = FromUtf8(initial);
    interrupted_ = false;
    drawing_.Begin();
    if (!initial_.empty()) el_wpush(editor_, kInitialKey);
    int count = 0;
    const wchar_t* line = el_wgets(editor_, &count);
    Draw(/*finished=*/true);
    WriteToTerminal(drawing_.End());
    if (interrupted_) return {.kind = Line::Kind::kInterrupted};
    if (line == nullptr || count <= 0) return {.kind = Line::Kind::kEnd};
    std::wstring_view text(line, static_cast<size_t>(count));
    if (text.ends_with(L'\n')) text.remove_suffix(1);
    return {.kind = Line::Kind::kText, .text = ToUtf8(text)};
  }

  // The terminal's own editing, and input that is no terminal.
  static Line ReadPlain(std::string_view prompt) {
    Line message{.kind = Line::Kind::kText};
    for (;;) {
      if (StdinIsTerminal()) PrintError("{}", prompt);
      std::string line;
      if (!std::getline(std::cin, line)) {
        const bool interrupted = InterruptScope::Take();
        if (interrupted) std::cin.clear();
        if (interrupted) std::clearerr(stdin);
        if (StdinIsTerminal()) PrintError("\n");
        return {.kind = interrupted ? Line::Kind::kInterrupted : Line::Kind::kEnd};
      }
      if (line.ends_with('\r')) line.pop_back();
      message.text += line;
      if (!message.text.ends_with('\\')) return message;
      message.text.back() = '\n';
      prompt = "... ";
    }
  }

  // ---- Keys

  // One key for libedit: 1 and a character, or 0 at the end of input.
  int GetKey(wchar_t* out) {
    for (;;) {
      if (!keys_.empty()) {
        *out = keys_.front();
        keys_.pop_front();
        return 1;
      }
      if (characters_.empty() && !InputIsThere()) Draw();
      const std::optional<wchar_t> character = ReadCharacter(-1);
      if (!character) return 0;
      if (*character == kEscape) {
        ReadSequence();
      } else if (*character != L'\0') {
        keys_.push_back(*character);
      }
    }
  }

  // Reads what follows an ESC and queues it, where it is a key that is bound.
  void ReadSequence() {
    std::wstring sequence(1, kEscape);
    const std::optional<wchar_t> next = ReadCharacter(kEscapeMilliseconds);
    if (!next) return;  // The key itself does nothing.
    sequence += *next;
    if (*next == L'[' || *next == L'O') {
      const bool csi = *next == L'[';
      for (;;) {
        const std::optional<wchar_t> character = ReadCharacter(kEscapeMilliseconds);
        if (!character) return;
        sequence += *character;
        if (!csi || (*character >= 0x40 && *character <= 0x7e) || sequence.size() > 32) break;
      }
      if (!IsBound(sequence)) return;
    }
    keys_.insert(keys_.end(), sequence.begin(), sequence.end());
  }

  // A character of the terminal; nullopt at its end, or when none comes for so long (-1: waits). Handles what
  // signals left to do.
  std::optional<wchar_t> ReadCharacter(int milliseconds) {
    for (;;) {
      if (!characters_.empty()) {
        const wchar_t character = characters_.front();
        characters_.pop_front();
        return character;
      }
      std::array<pollfd, 2> files = {pollfd{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0},
                                     pollfd{.fd = SignalWakeFile(), .events = POLLIN, .revents = 0}};
      const int ready = ::poll(files.data(), files.size(), milliseconds);
      if (ready < 0 && errno != EINTR) return std::nullopt;
      if (ready == 0) return std::nullopt;
      if (ready > 0 && files[1].revents == 0) return DecodeCharacter();
      HandleSignals();
      if (InterruptScope::Take()) return kInterruptKey;
    }
  }

  // In the locale's encoding. A byte that is no character becomes U+FFFD.
  static std::optional<wchar_t> DecodeCharacter() {
    std::mbstate_t state = {};
    for (;;) {
      char byte = 0;
      const ssize_t got = ::read(STDIN_FILENO, &byte, 1);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return std::nullopt;
      if (byte == '\0') return L'\0';
      wchar_t character = 0;
      const size_t used = std::mbrtowc(&character, &byte, 1, &state);
      if (used == static_cast<size_t>(-2)) continue;  // More bytes are to come.
      return used == static_cast<size_t>(-1) ? L'\xfffd' : character;
    }
  }

  void HandleSignals() {
    SignalsSeen seen = TakeSignals();
    while (seen.resized) {  // A window that is dragged changes many times.
      const int columns = TerminalColumns(TerminalFile());
      const std::optional<Cell> cursor = AskForCursor();
      const SignalsSeen more = TakeSignals();
      seen = {.resized = more.resized, .continued = seen.continued || more.continued};
      if (!seen.resized) WriteToTerminal(drawing_.Resize(columns, cursor));
    }
    if (seen.continued) {
      el_wset(editor_, EL_PREP_TERM, 0);
      el_wset(editor_, EL_PREP_TERM, 1);
      const std::optional<Cell> cursor = AskForCursor();
      if (cursor && cursor->column > 0) WriteToTerminal("\r\n");
      drawing_.Begin();
    }
    Draw();
  }

  // Brings what the terminal shows up to date, with the cursor at the end for a line that is finished.
  void Draw(bool finished = false) {
    const LineInfoW* line = el_wline(editor_);
    std::wstring text = prompt_ + std::wstring(line->buffer, line->lastchar);
    if (finished && text.ends_with(L'\n')) text.pop_back();
    const size_t cursor =
        finished ? text.size() : prompt_.size() + static_cast<size_t>(line->cursor - line->buffer);
    WriteToTerminal(
        drawing_.Update(text, cursor, TerminalColumns(TerminalFile()), TerminalRows(TerminalFile())));
  }

  static bool InputIsThere() {
    pollfd file = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    return ::poll(&file, 1, 0) > 0;
  }

  // Cell of the cursor as the terminal says it; nullopt when it does not say. Keys that come first wait.
  std::optional<Cell> AskForCursor() {
    using Clock = std::chrono::steady_clock;
    WriteToTerminal("\x1b[6n");
    const Clock::time_point end = Clock::now() + std::chrono::milliseconds(kAnswerMilliseconds);
    std::wstring read;
    std::optional<Cell> cursor;
    while (!cursor) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
      pollfd file = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
      if (left <= 0 || ::poll(&file, 1, static_cast<int>(left)) == 0) break;
      if ((file.revents & POLLIN) == 0) continue;
      const std::optional<wchar_t> character = DecodeCharacter();
      if (!character) break;
      read += *character;
      const size_t begin = read.rfind(L"\x1b[");
      Cell found;
      if (*character == L'R' && begin != std::wstring::npos &&
          std::swscanf(read.c_str() + begin, L"\x1b[%d;%dR", &found.row, &found.column) == 2) {
        cursor = Cell{.row = found.row - 1, .column = found.column - 1};
        read.resize(begin);
      }
    }
    characters_.insert(characters_.end(), read.begin(), read.end());
    return cursor;
  }

  // ---- Key functions: what they return is what libedit is to do.

  unsigned char Insert(std::wstring_view text) {
    if (text.empty()) return CC_NORM;
    const std::wstring terminated(text);
    return el_winsertstr(editor_, terminated.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
  }

  void MoveTo(ptrdiff_t position) {
    const LineInfoW* line = el_wline(editor_);
    el_cursor(editor_, static_cast<int>(position - (line->cursor - line->buffer)));
  }

  unsigned char Accept() {
    el_wpush(editor_, kAcceptKey);
    return CC_NORM;
  }

  unsigned char Enter() {
    const LineInfoW* line = el_wline(editor_);
    if (line->lastchar == line->buffer || line->lastchar[-1] != L'\\') return Accept();
    MoveTo(line->lastchar - line->buffer);
    el_wdeletestr(editor_, 1);
    return Insert(L"\n");
  }

  unsigned char Interrupt() {
    interrupted_ = true;
    return Accept();
  }

  unsigned char DeleteOrEnd() {
    const LineInfoW* line = el_wline(editor_);
    if (line->lastchar == line->buffer) return CC_EOF;
    if (line->cursor == line->lastchar) return CC_ERROR;
    el_cursor(editor_, 1);
    el_wdeletestr(editor_, 1);
    return CC_REFRESH;
  }

  // The text between the brackets of a paste, its line ends as '\n'. Other control characters but the tab are
  // left out, so that pasted text cannot drive the terminal.
  unsigned char Paste() {
    constexpr std::wstring_view kEnd = L"\x1b[201~";
    std::wstring text;
    bool dropped = false;
    while (!text.ends_with(kEnd)) {
      const std::optional<wchar_t> character = ReadCharacter(dropped ? kRestOfPasteMilliseconds : -1);
      if (!character) return dropped ? Interrupt() : CC_EOF;
      // Ctrl-C, which has the terminal drop what it had, the paste's end perhaps: what still comes is not for
      // typing.
      dropped = dropped || *character == kInterruptKey;
      text += *character;
    }
    if (dropped) return Interrupt();
    text.resize(text.size() - kEnd.size());
    std::wstring clean;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == L'\r') {
        if (i + 1 == text.size() || text[i + 1] != L'\n') clean += L'\n';
      } else if (text[i] == L'\n' || text[i] == L'\t' || (text[i] >= L' ' && text[i] != 0x7f)) {
        clean += text[i];
      }
    }
    return Insert(clean);
  }

  // Up and down walk the lines of a message, and behind its first and last one the history.
  unsigned char MoveLine(int direction) {
    const LineInfoW* line = el_wline(editor_);
    const std::wstring_view text(line->buffer, static_cast<size_t>(line->lastchar - line->buffer));
    const auto cursor = static_cast<size_t>(line->cursor - line->buffer);
    const auto start_of = [&](size_t position) {
      const size_t found = position == 0 ? std::wstring_view::npos : text.rfind(L'\n', position - 1);
      return found == std::wstring_view::npos ? 0 : found + 1;
    };
    const size_t start = start_of(cursor);
    const size_t column = cursor - start;
    size_t target = 0;
    if (direction < 0) {
      if (start == 0) {
        el_wpush(editor_, kPreviousKey);
        return CC_NORM;
      }
      target = start_of(start - 1);
    } else {
      const size_t end = text.find(L'\n', cursor);
      if (end == std::wstring_view::npos) {
        el_wpush(editor_, kNextKey);
        return CC_NORM;
      }
      target = end + 1;
    }
    const size_t end = std::min(text.find(L'\n', target), text.size());
    MoveTo(static_cast<ptrdiff_t>(std::min(target + column, end)));
    return CC_CURSOR;
  }

  unsigned char ClearScreen() {
    WriteToTerminal("\x1b[H\x1b[2J");
    drawing_.Begin();
    return CC_NORM;
  }

  unsigned char Complete() {
    const LineInfoW* line = el_wline(editor_);
    if (!completer_ || line->cursor != line->lastchar) return CC_ERROR;
    const std::string text = ToUtf8({line->buffer, static_cast<size_t>(line->lastchar - line->buffer)});
    const std::vector<std::string> words = completer_(text);
    if (words.empty()) return CC_ERROR;
    std::string common = words.front();
    for (const std::string& word : words) {
      common.resize(static_cast<size_t>(
          std::mismatch(common.begin(), common.end(), word.begin(), word.end()).first - common.begin()));
    }
    if (common.size() > text.size() && common.starts_with(text)) {
      return Insert(FromUtf8(std::string_view(common).substr(text.size())));
    }
    if (words.size() == 1) return CC_ERROR;
    std::string list;
    for (const std::string& word : words) list += word + "  ";
    WriteToTerminal(drawing_.End() + list + "\r\n");
    return CC_NORM;
  }

  // ---- History

  void Remember(const std::string& text) {
    last_history_ = text;
    if (history_ == nullptr) return;
    HistEventW event = {};
    history_w(history_, &event, H_ENTER, FromUtf8(text).c_str());
  }

  void LoadHistory() {
    struct stat status = {};
    if (history_path_.empty() || ::stat(history_path_.c_str(), &status) != 0 || !S_ISREG(status.st_mode))
      return;
    std::ifstream file(history_path_);
    std::deque<std::string> texts;
    for (std::string line; std::getline(file, line);) {
      const Result<Json> json = ParseJson(line, history_path_);
      if (!json || !json->is_string()) continue;
      texts.push_back(json->get<std::string>());
      if (texts.size() > kHistoryLines) texts.pop_front();
    }
    for (const std::string& text : texts) Remember(text);
  }

  std::string history_path_;
  Completer completer_;
  std::FILE* libedit_output_ = nullptr;
  EditLine* editor_ = nullptr;  // Null: lines are not edited.
  HistoryW* history_ = nullptr;
  LineDrawing drawing_{TerminalSeemsToRewrap()};
  std::wstring prompt_, initial_;
  std::deque<wchar_t> characters_;  // Read of the terminal and not yet looked at.
  std::deque<wchar_t> keys_;        // Looked at and not yet handed to libedit.
  std::string last_history_;
  bool interrupted_ = false;
};

LineEditor::LineEditor(std::string history_path, Completer completer)
    : impl_(std::make_unique<Impl>(std::move(history_path), std::move(completer))) {}
LineEditor::~LineEditor() = default;

LineEditor::Line LineEditor::Read(std::string_view prompt, std::string_view initial) {
  return impl_->Read(prompt, initial);
}
void LineEditor::AddHistory(const std::string& text) { impl_->AddHistory(text); }

std::string ChatHistoryPath() { return StatePath("DSV4_HISTORY", "chat_history"); }

}  // namespace dsv4::apps
