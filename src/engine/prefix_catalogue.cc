#include "engine/prefix_catalogue.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>

#include "base/check.h"
#include "base/log.h"
#include "base/read_file.h"
#include "engine/prefix_file.h"

namespace dsv4::engine {
namespace {

namespace fs = std::filesystem;

constexpr int kSchemaVersion = 1;
constexpr size_t kSecretBytes = 32;
constexpr const char* kSelectAll = "SELECT name, origin, salt, num_tokens, num_bytes, hashes FROM states";

// SQLite has signed integers only.
int64_t Signed(uint64_t value) { return static_cast<int64_t>(value); }

Status SystemError(const std::string& path, std::string_view action) {
  return {StatusCode::kUnavailable, fmt::format("{}: {}: {}", path, action, std::strerror(errno))};
}

}  // namespace

PrefixHashes HashPrefixes(uint64_t salt, std::span<const int32_t> tokens) {
  DSV4_CHECK(static_cast<int64_t>(tokens.size()) > kDiskRewindTokens) << tokens.size() << " tokens";
  PrefixHashes hashes;
  for (size_t i = 0; i < hashes.size(); ++i) {
    const std::span<const int32_t> prefix = tokens.first(tokens.size() - i);
    hashes[i] = XXH3_64bits_withSeed(prefix.data(), prefix.size_bytes(), salt);
  }
  return hashes;
}

// One connection and its statements, behind a mutex.
struct PrefixCatalogue::Database {
  ~Database() { Close(); }

  void Close() {
    for (const auto& [sql, statement] : statements) sqlite3_finalize(statement);
    statements.clear();
    sqlite3_close(connection);
    connection = nullptr;
  }

  Status Fail(std::string_view action) const {
    return {StatusCode::kUnavailable,
            fmt::format("prefix catalogue, {}: {}", action, sqlite3_errmsg(connection))};
  }

  Status Run(const char* sql) {
    if (sqlite3_exec(connection, sql, nullptr, nullptr, nullptr) != SQLITE_OK) return Fail(sql);
    return {};
  }

  // A statement that is prepared once, reset for another run. Null after an error.
  sqlite3_stmt* Statement(const char* sql) {
    sqlite3_stmt*& statement = statements[sql];
    if (statement == nullptr) {
      sqlite3_prepare_v3(connection, sql, -1, SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
    }
    if (statement != nullptr) {
      sqlite3_reset(statement);
      sqlite3_clear_bindings(statement);
    }
    return statement;
  }

  // Calls `visit` for each row that could be one of Insert's.
  template <typename Visit>
  Status Select(const char* sql, Visit visit) {
    sqlite3_stmt* statement = Statement(sql);
    if (statement == nullptr) return Fail(sql);
    int code = SQLITE_ROW;
    while ((code = sqlite3_step(statement)) == SQLITE_ROW) {
      CataloguedState state;
      const auto* name = reinterpret_cast<const char*>(sqlite3_column_text(statement, 0));
      state.name = name == nullptr ? "" : name;
      state.origin = static_cast<uint64_t>(sqlite3_column_int64(statement, 1));
      state.salt = static_cast<uint64_t>(sqlite3_column_int64(statement, 2));
      state.num_tokens = sqlite3_column_int64(statement, 3);
      state.num_bytes = sqlite3_column_int64(statement, 4);
      const void* hashes = sqlite3_column_blob(statement, 5);
      const bool has_hashes = sqlite3_column_bytes(statement, 5) == static_cast<int>(sizeof(PrefixHashes));
      if (!IsPrefixFileName(state.name) || state.num_tokens <= kDiskRewindTokens || state.num_bytes <= 0 ||
          !has_hashes) {
        continue;
      }
      std::memcpy(state.hashes.data(), hashes, sizeof(PrefixHashes));
      visit(std::move(state));
    }
    const Status status = code == SQLITE_DONE ? Status() : Fail(sql);
    sqlite3_reset(statement);
    return status;
  }

  Status Insert(const CataloguedState& state) {
    static constexpr const char* kSql =
        "INSERT OR REPLACE INTO states(name, origin, salt, num_tokens, num_bytes, hashes, used) "
        "VALUES(?, ?, ?, ?, ?, ?, ?)";
    sqlite3_stmt* statement = Statement(kSql);
    if (statement == nullptr) return Fail(kSql);
    sqlite3_bind_text(statement, 1, state.name.c_str(), -1, SQLITE_TRANSIENT);
    sqlite3_bind_int64(statement, 2, Signed(state.origin));
    sqlite3_bind_int64(statement, 3, Signed(state.salt));
    sqlite3_bind_int64(statement, 4, state.num_tokens);
    sqlite3_bind_int64(statement, 5, state.num_bytes);
    sqlite3_bind_blob(statement, 6, state.hashes.data(), sizeof(PrefixHashes), SQLITE_TRANSIENT);
    sqlite3_bind_int64(statement, 7, ++last_used);
    const int code = sqlite3_step(statement);
    sqlite3_reset(statement);
    return code == SQLITE_DONE ? Status() : Fail("adding a state");
  }

  Status RunNamed(const char* sql, const std::string& name, std::optional<int64_t> used) {
    sqlite3_stmt* statement = Statement(sql);
    if (statement == nullptr) return Fail(sql);
    sqlite3_bind_text(statement, 1, name.c_str(), -1, SQLITE_TRANSIENT);
    if (used) sqlite3_bind_int64(statement, 2, *used);
    const int code = sqlite3_step(statement);
    sqlite3_reset(statement);
    return code == SQLITE_DONE ? Status() : Fail(sql);
  }

  // Opens what is there, or makes it. An error when it is damaged or of another version.
  Status Open(const std::string& path) {
    if (sqlite3_open_v2(path.c_str(), &connection, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr) !=
        SQLITE_OK) {
      return Fail("opening");
    }
    // A lost last row costs nothing: the file is adopted.
    DSV4_RETURN_IF_ERROR(Run("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;"));
    DSV4_ASSIGN_OR_RETURN_STATUS(const int64_t version, Number("PRAGMA user_version"));
    if (version == 0) {
      DSV4_RETURN_IF_ERROR(
          Run("CREATE TABLE states(name TEXT PRIMARY KEY, origin INTEGER, salt INTEGER, num_tokens INTEGER, "
              "num_bytes INTEGER, hashes BLOB, used INTEGER) WITHOUT ROWID; "
              "CREATE INDEX by_use ON states(used);"));
      DSV4_RETURN_IF_ERROR(Run(fmt::format("PRAGMA user_version = {}", kSchemaVersion).c_str()));
    } else if (version != kSchemaVersion) {
      return Unimplemented(
          fmt::format("prefix catalogue, version: got {}, want {}", version, kSchemaVersion));
    }
    sqlite3_stmt* check = Statement("PRAGMA quick_check(1)");
    if (check == nullptr || sqlite3_step(check) != SQLITE_ROW ||
        std::string_view(reinterpret_cast<const char*>(sqlite3_column_text(check, 0))) != "ok") {
      return DataLoss("prefix catalogue: its pages do not fit together");
    }
    sqlite3_reset(check);
    int64_t num_rows = 0;
    DSV4_RETURN_IF_ERROR(Select(kSelectAll, [&](const CataloguedState&) { ++num_rows; }));
    DSV4_ASSIGN_OR_RETURN_STATUS(const int64_t want_rows, Number("SELECT count(*) FROM states"));
    if (num_rows != want_rows) {
      return DataLoss(fmt::format("prefix catalogue: {} of {} rows make sense", num_rows, want_rows));
    }
    DSV4_ASSIGN_OR_RETURN_STATUS(last_used, Number("SELECT coalesce(max(used), 0) FROM states"));
    return {};
  }

  Result<int64_t> Number(const char* sql) {
    sqlite3_stmt* statement = Statement(sql);
    if (statement == nullptr || sqlite3_step(statement) != SQLITE_ROW) return Error(Fail(sql));
    const int64_t number = sqlite3_column_int64(statement, 0);
    sqlite3_reset(statement);
    return number;
  }

  std::mutex mutex;
  sqlite3* connection = nullptr;
  std::map<std::string, sqlite3_stmt*, std::less<>> statements;
  int64_t last_used = 0;
};

PrefixCatalogue::PrefixCatalogue() = default;

PrefixCatalogue::~PrefixCatalogue() {
  database_.reset();
  if (lock_fd_ >= 0) ::close(lock_fd_);
}

Status PrefixCatalogue::LockDirectory(const std::string& directory) {
  files_ = directory + "/states";
  std::error_code error;
  fs::create_directories(directory, error);
  if (error)
    return {StatusCode::kUnavailable, fmt::format("{}: cannot create: {}", directory, error.message())};
  for (const std::string& path : {directory, files_}) {
    fs::create_directory(path, error);
    // What people have said to the model is private.
    if (!error) fs::permissions(path, fs::perms::owner_all, error);
    if (error) return {StatusCode::kUnavailable, fmt::format("{}: {}", path, error.message())};
  }
  const std::string path = directory + "/lock";
  lock_fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_fd_ < 0) return SystemError(path, "cannot open");
  if (::flock(lock_fd_, LOCK_EX | LOCK_NB) != 0) {
    return FailedPrecondition(directory + ": another server uses this directory; give each its own");
  }
  return {};
}

Status PrefixCatalogue::ReadSecret(const std::string& path) {
  if (const Result<std::string> text = ReadFile(path, FileKind::kRegular, kSecretBytes);
      text && text->size() == kSecretBytes) {
    secret_ = *text;
    return {};
  }
  secret_.resize(kSecretBytes);
  if (::getrandom(secret_.data(), secret_.size(), 0) != static_cast<ssize_t>(secret_.size())) {
    return SystemError(path, "no random bytes");
  }
  const std::string fresh = path + ".unfinished";
  const int fd = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return SystemError(fresh, "cannot create");
  const bool written =
      ::write(fd, secret_.data(), secret_.size()) == static_cast<ssize_t>(secret_.size()) && ::fsync(fd) == 0;
  ::close(fd);
  if (!written || ::rename(fresh.c_str(), path.c_str()) != 0) return SystemError(path, "cannot write");
  return {};
}

Status PrefixCatalogue::OpenDatabase(const std::string& path) {
  database_ = std::make_unique<Database>();
  const Status status = database_->Open(path);
  if (status.ok()) return {};
  LogWarning(fmt::format("{}: {}; it is made again from the files", path, status.ToString()));
  findings_.rebuilt = true;
  database_ = std::make_unique<Database>();
  for (const char* suffix : {"", "-wal", "-shm", "-journal"}) ::unlink((path + suffix).c_str());
  return database_->Open(path);
}

Status PrefixCatalogue::AdoptFile(const std::string& name, int64_t num_bytes) {
  const std::string path = files_ + "/" + name;
  const Result<PrefixKey> key = ReadPrefixKey(path);
  if (key && static_cast<int64_t>(key->tokens.size()) > kDiskRewindTokens &&
      name == PrefixFileName(key->origin, key->salt, key->tokens)) {
    ++findings_.num_adopted;
    return database_->Insert({.name = name,
                              .origin = key->origin,
                              .salt = key->salt,
                              .num_tokens = static_cast<int64_t>(key->tokens.size()),
                              .num_bytes = num_bytes,
                              .hashes = HashPrefixes(key->salt, key->tokens)});
  }
  LogWarning(key ? fmt::format("{}: holds another state than its name says; removed", path)
                 : fmt::format("{}; removed", key.error().ToString()));
  ++findings_.num_damaged;
  ::unlink(path.c_str());
  return {};
}

Status PrefixCatalogue::Reconcile() {
  std::map<std::string, int64_t> rows;  // Bytes by name.
  DSV4_RETURN_IF_ERROR(
      database_->Select(kSelectAll, [&](CataloguedState state) { rows[state.name] = state.num_bytes; }));
  DSV4_RETURN_IF_ERROR(database_->Run("BEGIN"));
  std::error_code error;
  for (fs::directory_iterator entry(files_, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (IsUnfinishedName(name)) {
      ++findings_.num_unfinished;
      ::unlink(entry->path().c_str());
      continue;
    }
    if (!IsPrefixFileName(name)) {
      ++findings_.num_foreign;
      continue;
    }
    struct stat status = {};
    const bool regular = ::lstat(entry->path().c_str(), &status) == 0 && S_ISREG(status.st_mode);
    const auto row = rows.find(name);
    if (row != rows.end() && regular && row->second == status.st_size) {
      rows.erase(row);
      continue;
    }
    if (row != rows.end()) {  // Its row is made anew, or removed with the others below.
      LogWarning(fmt::format("{}: got {} bytes, the catalogue says {}", entry->path().string(),
                             status.st_size, row->second));
    }
    const int64_t num_adopted = findings_.num_adopted;
    DSV4_RETURN_IF_ERROR(AdoptFile(name, status.st_size));
    if (row != rows.end() && findings_.num_adopted > num_adopted) rows.erase(row);
  }
  if (error) return {StatusCode::kUnavailable, fmt::format("{}: {}", files_, error.message())};
  for (const auto& [name, num_bytes] : rows) {
    ++findings_.num_missing;
    DSV4_RETURN_IF_ERROR(database_->RunNamed("DELETE FROM states WHERE name = ?", name, std::nullopt));
  }
  return database_->Run("COMMIT");
}

Result<std::unique_ptr<PrefixCatalogue>> PrefixCatalogue::Open(const std::string& directory) {
  std::unique_ptr<PrefixCatalogue> catalogue(new PrefixCatalogue());
  DSV4_TRY(catalogue->LockDirectory(directory));
  DSV4_TRY(catalogue->ReadSecret(directory + "/secret"));
  DSV4_TRY(catalogue->OpenDatabase(directory + "/catalogue.sqlite"));
  DSV4_TRY(catalogue->Reconcile());
  return catalogue;
}

Result<std::vector<CataloguedState>> PrefixCatalogue::All() const {
  const std::lock_guard lock(database_->mutex);
  std::vector<CataloguedState> states;
  DSV4_TRY(database_->Select(kSelectAll, [&](CataloguedState state) { states.push_back(std::move(state)); }));
  return states;
}

Status PrefixCatalogue::Add(const CataloguedState& state) {
  const std::lock_guard lock(database_->mutex);
  return database_->Insert(state);
}

Status PrefixCatalogue::Touch(const std::string& name) {
  const std::lock_guard lock(database_->mutex);
  return database_->RunNamed("UPDATE states SET used = ?2 WHERE name = ?1", name, ++database_->last_used);
}

Status PrefixCatalogue::Remove(const std::string& name) {
  const std::lock_guard lock(database_->mutex);
  ::unlink((files_ + "/" + name).c_str());
  return database_->RunNamed("DELETE FROM states WHERE name = ?", name, std::nullopt);
}

Result<CataloguedState> PrefixCatalogue::Oldest() const {
  const std::lock_guard lock(database_->mutex);
  std::optional<CataloguedState> oldest;
  DSV4_TRY(database_->Select(fmt::format("{} ORDER BY used LIMIT 1", kSelectAll).c_str(),
                             [&](CataloguedState state) { oldest = std::move(state); }));
  if (!oldest) return Error(NotFound("prefix catalogue: it is empty"));
  return std::move(*oldest);
}

}  // namespace dsv4::engine
