// Journal of finished units with hashes, appended line by line and checked when a run goes on.
#include "convert/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "io/mapped_file.h"

namespace dsv4::convert {
namespace {

Json ToJson(const Comparison& c) {
  return {c.num_values, c.num_different, c.num_clipped, c.num_vanished, c.error_squares, c.value_squares};
}

std::string ToLine(const UnitRecord& record) {
  Json comparisons = Json::array();
  for (const Comparison& comparison : record.comparisons) comparisons.push_back(ToJson(comparison));
  const Json line = {{"unit", record.unit},
                     {"source", record.source_hash},
                     {"output", record.output_hash},
                     {"comparisons", comparisons}};
  return line.dump();
}

// nullopt for a line that is not one of ours.
std::optional<UnitRecord> ParseRecord(const Json& line) {
  if (!line.is_object()) return std::nullopt;
  UnitRecord record;
  const auto number = [&](const char* key) -> std::optional<uint64_t> {
    const auto found = line.find(key);
    if (found == line.end() || !found->is_number_unsigned()) return std::nullopt;
    return found->get<uint64_t>();
  };
  const std::optional<uint64_t> unit = number("unit");
  const std::optional<uint64_t> source = number("source");
  const std::optional<uint64_t> output = number("output");
  const auto comparisons = line.find("comparisons");
  if (!unit || !source || !output || comparisons == line.end() || !comparisons->is_array())
    return std::nullopt;
  record.unit = static_cast<size_t>(*unit);
  record.source_hash = *source;
  record.output_hash = *output;
  for (const Json& entry : *comparisons) {
    if (!entry.is_array() || entry.size() != 6) return std::nullopt;
    for (size_t i = 0; i < entry.size(); ++i) {
      if (!(i < 4 ? entry[i].is_number_integer() : entry[i].is_number())) return std::nullopt;
    }
    record.comparisons.push_back({entry[0].get<int64_t>(), entry[1].get<int64_t>(), entry[2].get<int64_t>(),
                                  entry[3].get<int64_t>(), entry[4].get<double>(), entry[5].get<double>()});
  }
  return record;
}

Status CheckIdentity(const Json& head, const std::string& path, const JournalIdentity& identity) {
  const auto text = [&](const char* key) {
    const auto found = head.is_object() ? head.find(key) : head.end();
    return head.is_object() && found != head.end() && found->is_string() ? found->get<std::string>()
                                                                         : std::string();
  };
  if (text("source").empty() || text("options").empty())
    return InvalidArgument(fmt::format("{}: not a journal of dsv4 convert", path));
  if (text("source") != identity.source) {
    return FailedPrecondition(
        fmt::format("{}: belongs to the conversion of another source; give the same, or remove the directory "
                    "to start anew",
                    path));
  }
  if (text("options") != identity.options) {
    return FailedPrecondition(
        fmt::format("{}: was begun with \"{}\", now it is \"{}\"; give the same options, or remove the "
                    "directory to start anew",
                    path, text("options"), identity.options));
  }
  return {};
}

}  // namespace

Result<Journal> Journal::Open(const std::string& path, const JournalIdentity& identity) {
  const int descriptor =
      ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
  if (descriptor < 0)
    return Error(ResourceExhausted(fmt::format("{}: cannot open: {}", path, std::strerror(errno))));
  Journal journal(path, descriptor);
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0)
    return Error(Status(StatusCode::kUnavailable,
                        fmt::format("{}: another process is converting to this place", path)));
  DSV4_ASSIGN_OR_RETURN(const std::string text, io::ReadTextFile(path, size_t{4} << 30));
  std::string_view rest = text;
  bool has_head = false;
  for (size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
    const Result<Json> line = ParseJson(rest.substr(0, end), path);
    if (!has_head) {
      DSV4_TRY(CheckIdentity(line ? *line : Json(), path, identity));
      has_head = true;
    } else if (std::optional<UnitRecord> record = line ? ParseRecord(*line) : std::nullopt; record) {
      const auto unit = record->unit;
      journal.records_[unit] = *std::move(record);
    }
    rest.remove_prefix(end + 1);
  }
  // Text behind the last line was cut short.
  if (!rest.empty() && ::ftruncate(descriptor, static_cast<off_t>(text.size() - rest.size())) != 0)
    return Error(ResourceExhausted(fmt::format("{}: cannot truncate: {}", path, std::strerror(errno))));
  if (!has_head)
    DSV4_TRY(journal.AppendLine(
        Json({{"dsv4_convert", 1}, {"source", identity.source}, {"options", identity.options}}).dump()));
  return journal;
}

Journal::Journal(Journal&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      records_(std::move(other.records_)) {}

Journal& Journal::operator=(Journal&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(records_, other.records_);
  return *this;
}

Journal::~Journal() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status Journal::Append(const UnitRecord& record) { return AppendLine(ToLine(record)); }

Status Journal::AppendLine(std::string line) {
  line += '\n';
  // One call a line: a crash cuts the last line at most.
  const ssize_t written = ::write(descriptor_, line.data(), line.size());
  if (written != static_cast<ssize_t>(line.size()))
    return ResourceExhausted(
        fmt::format("{}: cannot write: {}", path_, std::strerror(written < 0 ? errno : ENOSPC)));
  return {};
}

}  // namespace dsv4::convert
