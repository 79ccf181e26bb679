// Files and batches as files of a directory: each is written whole under another name, and renamed.
#include "server/batch/batch_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/log.h"
#include "base/read_file.h"
#include "base/text.h"
#include "base/write_file.h"
#include "server/api/list_page.h"
#include "server/batch/batch_line.h"
#include "server/observe/random_id.h"

namespace dsv4::server {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kWindowSeconds = 24 * 3600;
constexpr std::string_view kFilePrefix = "file-";
constexpr std::string_view kBatchPrefix = "batch_";
// Bytes and seconds of an object at most, so that many of them can be added.
constexpr int64_t kMostNumber = int64_t{1} << 48;

Status SystemError(const std::string& path, std::string_view action) {
  return {StatusCode::kUnavailable, fmt::format("{}: {}: {}", path, action, std::strerror(errno))};
}

// Ids are names of files: only those that random_id.h makes.
bool IsId(std::string_view id, std::string_view prefix) {
  return id.starts_with(prefix) && id.size() > prefix.size() && id.size() < 100 &&
         std::ranges::all_of(id.substr(prefix.size()), [](unsigned char c) { return std::isxdigit(c) != 0; });
}

// Removes what killed servers were writing.
void RemoveParts(const std::string& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().extension() == ".part") ::unlink(entry->path().c_str());
  }
}

std::string OwnerText(uint64_t owner) { return fmt::format("{:016x}", owner); }

bool IsOwner(std::string_view text) {
  return text.size() == OwnerText(0).size() &&
         std::ranges::all_of(text, [](unsigned char c) { return std::isxdigit(c) != 0; });
}

// The first member of a file's or a batch's object that is not as it is written here; empty: all are.
std::string_view WrongMember(const Json& object, std::string_view id) {
  if (!object.is_object()) return "object";
  const auto is_text = [&](std::string_view name) {
    return object.contains(name) && object[name].is_string();
  };
  const auto is_number = [&](std::string_view name) {
    return object.contains(name) && object[name].is_number_unsigned() && object[name] <= kMostNumber;
  };
  if (!is_text("id") || object["id"] != id) return "id";
  if (!is_text("owner") || !IsOwner(object["owner"].get_ref<const std::string&>())) return "owner";
  const bool is_file = IsId(id, kFilePrefix);
  for (const std::string_view name :
       is_file ? std::array{"purpose", "filename"} : std::array{"status", "endpoint"})
    if (!is_text(name)) return name;
  if (!is_file && (!is_text("input_file_id") ||
                   !IsId(object["input_file_id"].get_ref<const std::string&>(), kFilePrefix)))
    return "input_file_id";
  for (const std::string_view name :
       is_file ? std::array{"bytes", "created_at"} : std::array{"expires_at", "created_at"})
    if (!is_number(name)) return name;
  return {};
}

// DataLoss for what is none of ours.
Result<Json> ReadObject(const std::string& folder, std::string_view id) {
  const std::string path = fmt::format("{}/{}.json", folder, id);
  DSV4_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, FileKind::kRegular, kMaxModelDocumentBytes));
  Result<Json> object = ParseJson(text, path);
  if (!object) return object;
  if (const std::string_view wrong = WrongMember(*object, id); !wrong.empty())
    return Error(StatusCode::kDataLoss, fmt::format("{}: '{}' is damaged", path, wrong));
  return object;
}

// The object that clients see: without the owner.
std::string Shown(Json object) {
  object.erase("owner");
  return JsonText(object);
}

// Objects of the folder, all or those of one owner, the newest first. What is damaged is left out, and told to `damaged`.
std::vector<Json> ReadFolder(const std::string& folder, std::optional<uint64_t> owner,
                             const std::function<void(const Status&)>& damaged = {}) {
  std::vector<Json> objects;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().extension() != ".json") continue;
    Result<Json> object = ReadObject(folder, entry->path().stem().native());
    if (!object && damaged) damaged(object.error());
    if (object && (!owner || (*object)["owner"] == OwnerText(*owner))) objects.push_back(std::move(*object));
  }
  const auto age = [](const Json& object) {
    return std::pair(object["created_at"].get<int64_t>(), object["id"].get<std::string>());
  };
  std::ranges::sort(objects, [&](const Json& a, const Json& b) { return age(a) > age(b); });
  return objects;
}

// The page of `objects`, the newest first, that the query asks for.
Result<std::string> ListOf(std::vector<Json> objects, std::string_view query, const ListLimits& limits) {
  std::ranges::reverse(objects);
  std::vector<std::string> ids;
  for (const Json& object : objects) ids.push_back(object["id"].get<std::string>());
  DSV4_ASSIGN_OR_RETURN(const ListPage page, PageOf(query, ids, limits));
  Json data = Json::array();
  for (const size_t i : page.indices) {
    objects[i].erase("owner");
    data.push_back(std::move(objects[i]));
  }
  return JsonText({{"object", "list"},
                   {"first_id", data.empty() ? Json() : data.front()["id"]},
                   {"last_id", data.empty() ? Json() : data.back()["id"]},
                   {"has_more", page.has_more},
                   {"data", data}});
}

bool HasEnded(const Json& batch) {
  const Json& status = batch["status"];
  return status != "validating" && status != "in_progress" && status != "cancelling";
}

Result<Json> Owned(const std::string& folder, std::string_view prefix, uint64_t owner,
                   const std::string& id) {
  const Status missing = NotFound(fmt::format("'{}' is not stored here", id));
  if (!IsId(id, prefix)) return Error(missing);
  Result<Json> object = ReadObject(folder, id);
  if (!object || (*object)["owner"] != OwnerText(owner)) return Error(missing);
  return object;
}

std::string FilesOf(const BatchStoreOptions& options) { return options.directory + "/files"; }
std::string BatchesOf(const BatchStoreOptions& options) { return options.directory + "/batches"; }

Status WriteObject(const std::string& folder, const Json& object) {
  return WriteFile(folder + "/" + object["id"].get<std::string>() + ".json", JsonText(object));
}

}  // namespace

Result<std::unique_ptr<BatchStore>> BatchStore::Open(BatchStoreOptions options) {
  std::unique_ptr<BatchStore> store(new BatchStore(std::move(options)));
  DSV4_TRY(store->Prepare());
  return store;
}

BatchStore::~BatchStore() {
  if (lock_ >= 0) ::close(lock_);
}

Status BatchStore::Prepare() {
  std::error_code error;
  for (const std::string& path : {options_.directory, FilesOf(options_), BatchesOf(options_)}) {
    fs::create_directories(path, error);
    // Requests of people are private.
    if (!error) fs::permissions(path, fs::perms::owner_all, error);
    if (error) return {StatusCode::kUnavailable, fmt::format("{}: {}", path, error.message())};
  }
  const std::string lock = options_.directory + "/lock";
  lock_ = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_ < 0) return SystemError(lock, "cannot open");
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0)
    return FailedPrecondition(options_.directory + ": another server uses this directory; give each its own");
  for (const std::string& path : {options_.directory, FilesOf(options_), BatchesOf(options_)})
    RemoveParts(path);
  for (const std::string& path : {FilesOf(options_), BatchesOf(options_)})
    ReadFolder(path, std::nullopt,
               [](const Status& status) { LogWarning(fmt::format("{}; it is left out", status.message())); });
  const std::string secret = options_.directory + "/secret";
  if (Result<std::string> text = ReadFile(secret, FileKind::kRegular, 1024); text && !text->empty()) {
    secret_ = std::move(*text);
    return {};
  }
  secret_ = RandomId("");
  return WriteFile(secret, secret_);
}

// ---------------------------------------------------------------------------------------------------------------------
// Files

Result<std::string> BatchStore::AddFile(uint64_t owner, std::string_view name, std::string_view purpose,
                                        std::string_view content) {
  const std::lock_guard lock(mutex_);
  int64_t had = 0;
  for (const Json& file : ReadFolder(FilesOf(options_), std::nullopt)) had += file["bytes"].get<int64_t>();
  if (had + static_cast<int64_t>(content.size()) > options_.max_bytes) {
    return Error(InvalidArgument(fmt::format("file: {}, and {} are stored of {} (--batches-mib); delete some",
                                             Counted(content.size(), "byte"), had, options_.max_bytes)));
  }
  const Json file = {{"id", TimedId(kFilePrefix)},    {"object", "file"},
                     {"bytes", content.size()},       {"created_at", std::time(nullptr)},
                     {"filename", std::string(name)}, {"purpose", std::string(purpose)},
                     {"status", "processed"},         {"owner", OwnerText(owner)}};
  DSV4_TRY(WriteFile(FilesOf(options_) + "/" + file["id"].get<std::string>() + ".data", content));
  DSV4_TRY(WriteObject(FilesOf(options_), file));
  return Shown(file);
}

Result<std::string> BatchStore::File(uint64_t owner, const std::string& id) const {
  const std::lock_guard lock(mutex_);
  DSV4_ASSIGN_OR_RETURN(Json file, Owned(FilesOf(options_), kFilePrefix, owner, id));
  return Shown(std::move(file));
}

Result<std::string> BatchStore::Files(uint64_t owner, std::string_view query) const {
  const std::lock_guard lock(mutex_);
  std::vector<Json> files = ReadFolder(FilesOf(options_), owner);
  if (const std::string purpose = QueryValue(query, "purpose"); !purpose.empty())
    std::erase_if(files, [&](Json& file) { return file["purpose"] != purpose; });
  return ListOf(std::move(files), query, kFileLimits);
}

Result<std::ifstream> BatchStore::Content(uint64_t owner, const std::string& id) const {
  const std::lock_guard lock(mutex_);
  if (const Result<Json> file = Owned(FilesOf(options_), kFilePrefix, owner, id); !file)
    return Error(file.error());
  const std::string path = FilesOf(options_) + "/" + id + ".data";
  std::ifstream content(path, std::ios::binary);
  if (!content) return Error(NotFound(fmt::format("{}: {}", path, std::strerror(errno))));
  return content;
}

Status BatchStore::EraseFile(uint64_t owner, const std::string& id) {
  const std::lock_guard lock(mutex_);
  if (const Result<Json> file = Owned(FilesOf(options_), kFilePrefix, owner, id); !file) return file.error();
  for (const Json& batch : ReadFolder(BatchesOf(options_), owner)) {
    if (!HasEnded(batch) && batch["input_file_id"] == id)
      return InvalidArgument(fmt::format("'{}': {} is reading it", id, batch["id"].get<std::string>()));
  }
  const std::string path = FilesOf(options_) + "/" + id;
  ::unlink((path + ".json").c_str());
  ::unlink((path + ".data").c_str());
  return {};
}

// ---------------------------------------------------------------------------------------------------------------------
// Batches

Result<std::string> BatchStore::AddBatch(uint64_t owner, const NewBatch& wanted) {
  const std::lock_guard lock(mutex_);
  DSV4_ASSIGN_OR_RETURN(const Json file, Owned(FilesOf(options_), kFilePrefix, owner, wanted.input_file));
  if (file["purpose"] != "batch") {
    return Error(InvalidArgument(fmt::format("input_file_id: a file of purpose '{}', wanted batch",
                                             file["purpose"].get<std::string>())));
  }
  DSV4_ASSIGN_OR_RETURN(Json metadata, ParseJson(wanted.metadata, "metadata"));
  const int64_t now = std::time(nullptr);
  Json batch = {{"id", TimedId(kBatchPrefix)},
                {"object", "batch"},
                {"endpoint", wanted.endpoint},
                {"errors", nullptr},
                {"input_file_id", wanted.input_file},
                {"completion_window", "24h"},
                {"status", "validating"},
                {"output_file_id", nullptr},
                {"error_file_id", nullptr},
                {"created_at", now},
                {"in_progress_at", nullptr},
                {"expires_at", now + kWindowSeconds},
                {"finalizing_at", nullptr},
                {"completed_at", nullptr},
                {"failed_at", nullptr},
                {"expired_at", nullptr},
                {"cancelling_at", nullptr},
                {"cancelled_at", nullptr},
                {"request_counts", {{"total", 0}, {"completed", 0}, {"failed", 0}}},
                {"metadata", std::move(metadata)},
                {"owner", OwnerText(owner)}};
  DSV4_TRY(WriteObject(BatchesOf(options_), batch));
  return Shown(std::move(batch));
}

Result<std::string> BatchStore::Batch(uint64_t owner, const std::string& id) const {
  const std::lock_guard lock(mutex_);
  DSV4_ASSIGN_OR_RETURN(Json batch, Owned(BatchesOf(options_), kBatchPrefix, owner, id));
  return Shown(std::move(batch));
}

Result<std::string> BatchStore::Batches(uint64_t owner, std::string_view query) const {
  const std::lock_guard lock(mutex_);
  return ListOf(ReadFolder(BatchesOf(options_), owner), query, kItemLimits);
}

Result<std::string> BatchStore::Cancel(uint64_t owner, const std::string& id) {
  const std::lock_guard lock(mutex_);
  DSV4_ASSIGN_OR_RETURN(Json batch, Owned(BatchesOf(options_), kBatchPrefix, owner, id));
  if (HasEnded(batch))
    return Error(InvalidArgument(fmt::format("'{}': it is {}", id, batch["status"].get<std::string>())));
  batch["status"] = "cancelling";
  batch["cancelling_at"] = std::time(nullptr);
  DSV4_TRY(WriteObject(BatchesOf(options_), batch));
  return Shown(std::move(batch));
}

std::optional<BatchJob> BatchStore::Oldest() const {
  const std::lock_guard lock(mutex_);
  std::vector<Json> batches = ReadFolder(BatchesOf(options_), std::nullopt);
  const auto found = std::find_if_not(batches.rbegin(), batches.rend(), HasEnded);
  if (found == batches.rend()) return std::nullopt;
  const auto text = [&](const char* name) { return (*found)[name].get<std::string>(); };
  return BatchJob{.id = text("id"),
                  .owner = std::stoull(text("owner"), nullptr, 16),
                  .endpoint = text("endpoint"),
                  .input_path = FilesOf(options_) + "/" + text("input_file_id") + ".data",
                  .answers_path = BatchesOf(options_) + "/" + text("id") + ".answers",
                  .expires_at = (*found)["expires_at"].get<int64_t>(),
                  .is_cancelling = text("status") == "cancelling"};
}

bool BatchStore::IsCancelling(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const Result<Json> batch = ReadObject(BatchesOf(options_), id);
  return !batch || (*batch)["status"] == "cancelling";
}

Status BatchStore::Begin(const std::string& id) {
  const std::lock_guard lock(mutex_);
  DSV4_ASSIGN_OR_RETURN_STATUS(Json batch, ReadObject(BatchesOf(options_), id));
  if (batch["status"] != "validating") return {};
  batch["status"] = "in_progress";
  batch["in_progress_at"] = std::time(nullptr);
  return WriteObject(BatchesOf(options_), batch);
}

Status BatchStore::Count(const std::string& id, int64_t total, int64_t answered, int64_t failed) {
  const std::lock_guard lock(mutex_);
  DSV4_ASSIGN_OR_RETURN_STATUS(Json batch, ReadObject(BatchesOf(options_), id));
  batch["request_counts"] = {{"total", total}, {"completed", answered - failed}, {"failed", failed}};
  return WriteObject(BatchesOf(options_), batch);
}

Status BatchStore::Fail(const std::string& id, std::string_view message) {
  const std::lock_guard lock(mutex_);
  DSV4_ASSIGN_OR_RETURN_STATUS(Json batch, ReadObject(BatchesOf(options_), id));
  batch["status"] = "failed";
  batch["failed_at"] = std::time(nullptr);
  // The file's, as ReadBatchLine names it.
  Json line = nullptr;
  int64_t number = 0;
  constexpr std::string_view kBefore = "line ";
  if (message.starts_with(kBefore) &&
      std::from_chars(message.data() + kBefore.size(), message.data() + message.size(), number).ec ==
          std::errc()) {
    line = number;
  }
  batch["errors"] = {{"object", "list"},
                     {"data", Json::array({{{"code", "invalid_batch"},
                                            {"message", std::string(message)},
                                            {"param", nullptr},
                                            {"line", line}}})}};
  return WriteObject(BatchesOf(options_), batch);
}

Status BatchStore::End(const std::string& id, BatchEnd end) {
  Json batch;
  {
    const std::lock_guard lock(mutex_);
    DSV4_ASSIGN_OR_RETURN_STATUS(batch, ReadObject(BatchesOf(options_), id));
  }
  const uint64_t owner = std::stoull(batch["owner"].get<std::string>(), nullptr, 16);
  const std::string answers_path = BatchesOf(options_) + "/" + id + ".answers";
  std::string good;
  std::string bad;
  std::ifstream answers(answers_path);
  std::string line;
  while (std::getline(answers, line)) {
    if (answers.eof()) break;  // Half a line.
    const Result<AnsweredLine> answer = ReadAnsweredLine(line);
    if (answer) (answer->ok ? good : bad) += line + "\n";
  }
  for (const auto& [text, member] : {std::pair(&good, "output_file_id"), std::pair(&bad, "error_file_id")}) {
    if (text->empty()) continue;
    DSV4_ASSIGN_OR_RETURN_STATUS(
        const std::string file,
        AddFile(owner, fmt::format("{}_{}.jsonl", id, text == &good ? "output" : "error"), "batch_output",
                *text));
    DSV4_ASSIGN_OR_RETURN_STATUS(const Json object, ParseJson(file, "file"));
    batch[member] = object["id"];
  }
  const char* const status = end == BatchEnd::kCompleted   ? "completed"
                             : end == BatchEnd::kCancelled ? "cancelled"
                                                           : "expired";
  const std::lock_guard lock(mutex_);
  const int64_t now = std::time(nullptr);
  batch["status"] = status;
  batch["finalizing_at"] = now;
  batch[std::string(status) + "_at"] = now;
  DSV4_RETURN_IF_ERROR(WriteObject(BatchesOf(options_), batch));
  ::unlink(answers_path.c_str());
  return {};
}

}  // namespace dsv4::server
