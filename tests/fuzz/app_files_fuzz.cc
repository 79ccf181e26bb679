// Files and texts that commands are given, and what they print. The first byte chooses. There are keys, conversations, tools and ids.
// There are cases, profiles of experts, data sets, the journal of a conversion, a model's card. There is an answer on the terminal, and the
// reply of a server to a load. Each is taken or refused with a text; nothing is thrown.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

#include "apps/bench/load_client.h"
#include "apps/bench/workload.h"
#include "apps/launch/local_server.h"
#include "apps/serve/api_keys.h"
#include "apps/shared/chat_file.h"
#include "apps/shared/expert_profile.h"
#include "apps/terminal/formula_text.h"
#include "apps/terminal/printable.h"
#include "apps/terminal/text_writer.h"
#include "apps/tools/case_file.h"
#include "base/check.h"
#include "base/utf8.h"
#include "convert/journal.h"
#include "folder.h"
#include "raw_server.h"
#include "session/model_card.h"

namespace dsv4::apps {
namespace {

template <typename Value>
bool Check(const Result<Value>& result) {
  DSV4_CHECK(result.has_value() || !result.error().message().empty());
  return result.has_value();
}

// The path of a file with this text; the last one is gone.
std::string FileWith(std::string_view text, std::string_view name = "file") {
  static const testing::Folder folder;
  return folder.With(name, text);
}

bool Keys(std::string_view text) {
  const auto keys = ParseApiKeys(text, "keys");
  if (!Check(keys)) return false;
  for (const std::string& key : *keys) {
    DSV4_CHECK(!key.empty() && CheckApiKey(key, "key").ok()) << key;
    DSV4_CHECK(key.find_first_of("\r\n") == std::string::npos) << key;
  }
  return true;
}

bool Chat(std::string_view text) {
  const std::string path = FileWith(text);
  bool any = Check(ReadToolsFile(path)) || Check(ReadCases(path));
  (void)Check(ParseTokenIds(std::string(text), "ids"));
  const auto messages = ReadChatFile(path);
  if (!Check(messages)) return any;
  const std::string written = ChatFileText(*messages);
  const auto again = ReadChatFile(FileWith(written));
  DSV4_CHECK(again.has_value() && ChatFileText(*again) == written) << written;
  return true;
}

bool Profile(std::string_view text) {
  const auto profile = ReadExpertProfile(FileWith(text));
  if (!Check(profile)) return false;
  for (const auto& layer : OrderByCounts(*profile)) {
    DSV4_CHECK(layer.size() == profile->counts[0].size());
  }
  const std::string path = FileWith("", "written");
  DSV4_CHECK(WriteExpertProfile(path, *profile).ok());
  const auto again = ReadExpertProfile(path);
  DSV4_CHECK(again.has_value() && again->counts == profile->counts);
  return true;
}

bool Data(std::string_view text) {
  const auto prompts = ParseDataset(
      std::string(text), "data",
      [](const std::string& answer) -> Result<int64_t> { return static_cast<int64_t>(answer.size()); });
  if (!Check(prompts)) return false;
  for (const LoadPrompt& prompt : *prompts) {
    DSV4_CHECK(prompt.output_tokens >= 0 && !prompt.messages.empty());
  }
  return true;
}

bool Journal(std::string_view text) {
  const convert::JournalIdentity identity{.source = "s", .options = "o"};
  const std::string path = FileWith(text, "journal");
  bool had_records = false;
  {
    auto journal = convert::Journal::Open(path, identity);
    if (!Check(journal)) return false;
    had_records = !journal->records().empty();
    DSV4_CHECK(journal->Append({.unit = 7, .source_hash = 1, .output_hash = 2, .comparisons = {}}).ok());
  }
  const auto again = convert::Journal::Open(path, identity);
  DSV4_CHECK(again.has_value() && again->records().contains(7)) << again.error().ToString();
  return had_records;
}

bool Card(std::string_view text) {
  const std::string path = FileWith(text, "generation_config.json");
  const auto card = session::ModelCard::Read(path.substr(0, path.rfind('/')));
  if (!Check(card)) return false;
  DSV4_CHECK(!card->max_new_tokens || *card->max_new_tokens > 0);
  DSV4_CHECK(card->notice.empty() == card->words.empty());
  return true;
}

// Sequences of ours are looks (ESC [ numbers m) and links (ESC ] 8 ; ; address ESC \).
std::string WithoutSequences(std::string_view text) {
  std::string plain;
  while (!text.empty()) {
    const bool is_look = text.starts_with("\x1b[");
    const bool is_link = text.starts_with("\x1b]8;;");
    size_t end = 0;
    if (is_look) end = text.find_first_not_of("0123456789;", 2);
    if (is_link) end = text.find('\x1b', 5);
    if (is_look) {
      DSV4_CHECK(end != std::string_view::npos && text[end] == 'm') << text;
    }
    if (is_link) {
      DSV4_CHECK(end != std::string_view::npos && text.substr(end, 2) == "\x1b\\") << text;
    }
    if (is_look || is_link) {
      text.remove_prefix(end + (is_link ? 2 : 1));
      continue;
    }
    plain += text.front();
    text.remove_prefix(1);
  }
  return plain;
}

void CheckHarmless(std::string_view text) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    DSV4_CHECK((byte >= 0x20 && byte != 0x7F) || c == '\n' || c == '\t') << static_cast<int>(byte);
  }
  DSV4_CHECK(text.find("\xC2\x9B") == std::string_view::npos);  // CSI in one character.
}

// The first byte: bits of the look; its rest the columns.
bool Terminal(std::string_view text) {
  if (text.empty()) return false;
  const auto bits = static_cast<unsigned char>(text[0]);
  const std::string repaired = RepairUtf8(text.substr(1));
  CheckHarmless(Printable(text));
  if (const auto formula = FormulaText(repaired)) {
    DSV4_CHECK(FindInvalidUtf8(*formula) == std::string::npos);
  }
  const auto draw = [&](size_t piece) {
    std::string out;
    TextWriter writer({.markdown = (bits & 1) != 0,
                       .colours = (bits & 2) != 0,
                       .columns = [&] { return 1 + bits / 4; },
                       .write = [&](std::string_view part) { out += part; }});
    for (size_t at = 0; at < repaired.size();) {
      size_t end = std::min(repaired.size(), at + piece);
      while (end < repaired.size() && (static_cast<unsigned char>(repaired[end]) & 0xC0U) == 0x80U) ++end;
      writer.Write(std::string_view(repaired).substr(at, end - at));
      at = end;
    }
    writer.Finish();
    return out;
  };
  const std::string whole = draw(repaired.size() + 1);
  CheckHarmless(bits & 1 ? WithoutSequences(whole) : whole);
  CheckHarmless(bits & 1 ? WithoutSequences(draw(1)) : draw(1));
  return true;
}

bool Reply(std::string_view text) {
  static testing::RawServer server;
  server.Say(text);
  DSV4_CHECK(CheckServerUrl(server.url()).ok());
  const auto answer = AskStreamed(server.url(), "key", "{}");
  if (!Check(answer)) return false;
  DSV4_CHECK(answer->num_prompt_tokens >= 0 && answer->num_output_tokens >= 0);
  return true;
}

bool Models(std::string_view text) {
  static testing::RawServer server;
  server.Say(text);
  return Check(ServedModel(server.url(), "key"));
}

}  // namespace
}  // namespace dsv4::apps

extern "C" bool FuzzInputIsAccepted(const uint8_t* data, size_t size) {
  using namespace dsv4::apps;
  if (size == 0) return false;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  constexpr bool (*kReaders[])(std::string_view) = {Keys, Chat,     Profile, Data,  Journal,
                                                    Card, Terminal, Reply,   Models};
  return kReaders[data[0] % std::size(kReaders)](text);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)FuzzInputIsAccepted(data, size);
  return 0;
}
