// Check `files`: SHA-256 and git digests beside records in the folder and known releases.
#include "diag/checks/file_digests.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/descriptor.h"
#include "base/read_file.h"
#include "base/text.h"
#include "hub/digest.h"

namespace dsv4::diag {
namespace {

namespace fs = std::filesystem;

constexpr size_t kSha256Digits = 64;
constexpr size_t kMaxRecordBytes = size_t{1} << 20;

struct KnownFile {
  std::string_view release;
  std::string_view name;
  std::string_view digest;
};
// Files of one release stand together. `config.json` decides which release a directory says it is.
constexpr std::array<KnownFile, 10> kKnownFiles = {{
    {"models/tiny of this repository", "config.json",
     "237b7508a8434622a3f25744a8101a84e0390e63523dd7612b398df99be75033"},
    {"models/tiny of this repository", "model.safetensors",
     "b207672f1db27eb9a297d8bf084bf90356eb81dcad3c889db3e1d3a2aeb5a2fc"},
    {"models/tiny of this repository", "tokenizer.json",
     "42d87db6c25199a49a75eb6bb9e69e9094705e7f165e35bb7abc3da6f1674a67"},
    {"models/tiny of this repository", "generation_config.json",
     "139c07faa02b8cc79c2d47309033774cf83b70b1673a68e3a40146a9d7ee6089"},
    {"models/tiny-v41 of this repository", "config.json",
     "8d04e1a4acbaa072af01e23b75942ce80d0983abe101e7e7abee31e41c051c2f"},
    {"models/tiny-v41 of this repository", "model.safetensors",
     "1a6596848691baae13272bc121a3273172d3f8046524e1d254d106be147e18bf"},
    {"models/tiny-v41 of this repository", "tokenizer.json",
     "c45f76a11ae2c98afdd993ff13448fac2d896c565f4a0fc50352591159812ed3"},
    {"models/tiny-v41 of this repository", "generation_config.json",
     "aa505bb5e1778cb672c8193e373f3d7be9aa41c1d2b9b7e8b55f8f222ad0b4ac"},
    // deepseek-ai/deepseek-recipe, static/tokenizers.
    {"DeepSeek-V4", "tokenizer.json", "97d2f31b020d18b5aee5c9b3d5b4efb10ea210f3fe3f7dffe3f1cd90542d6b19"},
    {"DeepSeek-V4.1", "tokenizer.json", "81f64d1248a68ce3663e07ab3ee48b851e5df0e32d27cb98e4c9a268151e8d99"},
}};

std::string Lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

Result<std::string> DigestOfFile(const std::string& path, hub::DigestKind kind) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return Error(Status(errno == ENOENT ? StatusCode::kNotFound : StatusCode::kInvalidArgument,
                        fmt::format("{}: {}", path, std::strerror(errno))));
  }
  const Descriptor closer(fd);
  struct stat status = {};
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode))
    return Error(InvalidArgument(fmt::format("{}: not a regular file", path)));
  hub::Digest digest(kind, status.st_size);
  std::vector<char> buffer(size_t{1} << 20);
  for (;;) {
    const ssize_t count = read(fd, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      return Error(
          Status(StatusCode::kDataLoss, fmt::format("{}: cannot read: {}", path, std::strerror(errno))));
    if (count == 0) return digest.Finish();
    digest.Update({buffer.data(), static_cast<size_t>(count)});
  }
}

Status AddSums(const fs::path& file, std::vector<FileRecord>& records) {
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::string text,
                               ReadFile(file.string(), FileKind::kRegular, kMaxRecordBytes));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t space = line.find(' ');
    // "HEX  name" or "HEX *name"; names of other directories are not ours to judge.
    if (space != kSha256Digits || !hub::IsDigest(std::string_view(line).substr(0, space)) ||
        line.size() < space + 3)
      continue;
    std::string name = line.substr(space + 2);
    if (name.starts_with("./")) name.erase(0, 2);
    if (name.find('/') == std::string::npos)
      records.push_back({std::move(name), Lower(line.substr(0, space)), file.filename().string()});
  }
  return {};
}

// Lines: commit, etag, time.
Status AddHubMetadata(const fs::path& file, std::vector<FileRecord>& records) {
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::string text,
                               ReadFile(file.string(), FileKind::kRegular, kMaxRecordBytes));
  std::istringstream lines(text);
  std::string commit;
  std::string etag;
  std::getline(lines, commit);
  std::getline(lines, etag);
  etag.erase(std::remove_if(etag.begin(), etag.end(), [](char c) { return c == '"' || c == '\r'; }),
             etag.end());
  if (hub::IsDigest(etag)) records.push_back({file.stem().string(), Lower(etag), "the hub's metadata"});
  return {};
}

struct Judged {
  FileRecord record;
  int64_t size = 0;
};

// Release that the directory claims to be: the release whose config.json it has.
std::string_view ReleaseOf(const std::string& config_digest) {
  for (const KnownFile& known : kKnownFiles) {
    if (known.name == "config.json" && known.digest == config_digest) return known.release;
  }
  return {};
}

}  // namespace

Result<std::vector<FileRecord>> ReadFileRecords(const std::string& directory) {
  std::vector<FileRecord> records;
  std::error_code error;
  for (const char* name : {"SHA256SUMS", "sha256sums.txt"}) {
    if (fs::exists(fs::path(directory) / name, error)) DSV4_TRY(AddSums(fs::path(directory) / name, records));
  }
  std::vector<fs::path> metadata;
  const fs::path downloads = fs::path(directory) / ".cache" / "huggingface" / "download";
  for (const fs::directory_entry& entry : fs::directory_iterator(downloads, error)) {
    if (entry.path().extension() == ".metadata") metadata.push_back(entry.path());
  }
  std::sort(metadata.begin(), metadata.end());
  for (const fs::path& path : metadata) DSV4_TRY(AddHubMetadata(path, records));
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    if (!entry.is_symlink(error)) continue;
    const fs::path target = fs::read_symlink(entry.path(), error);
    if (!error && target.parent_path().filename() == "blobs" && hub::IsDigest(target.filename().string()))
      records.push_back(
          {entry.path().filename().string(), Lower(target.filename().string()), "the hub's cache"});
  }
  return records;
}

Result<CheckReport> CheckFiles(const std::string& directory, int64_t max_bytes) {
  CheckReport report{.check = "files"};
  DSV4_ASSIGN_OR_RETURN(std::vector<FileRecord> records, ReadFileRecords(directory));
  std::error_code error;
  std::map<std::string, std::string> digests;  // SHA-256 by name, of what was read.
  const auto sha256 = [&](const std::string& name) -> Result<std::string> {
    if (const auto found = digests.find(name); found != digests.end()) return found->second;
    DSV4_ASSIGN_OR_RETURN(std::string digest, DigestOfFile(directory + "/" + name, hub::DigestKind::kSha256));
    digests.emplace(name, digest);
    return digest;
  };

  std::string_view release;
  if (fs::is_regular_file(directory + "/config.json", error)) {
    DSV4_ASSIGN_OR_RETURN(const std::string config, sha256("config.json"));
    release = ReleaseOf(config);
  }
  for (const KnownFile& known : kKnownFiles) {
    if (!release.empty() && known.release == release)
      records.push_back({std::string(known.name), std::string(known.digest), std::string(release)});
  }

  std::vector<Judged> judged;
  std::vector<std::string> complaints;
  for (FileRecord& record : records) {
    const auto size = fs::file_size(fs::path(directory) / record.name, error);
    if (error) {
      complaints.push_back(fmt::format("{} is missing: {} names it", record.name, record.source));
      continue;
    }
    judged.push_back({std::move(record), static_cast<int64_t>(size)});
  }
  std::stable_sort(judged.begin(), judged.end(),
                   [](const Judged& a, const Judged& b) { return a.size < b.size; });
  int64_t num_bytes = 0;
  int64_t num_right = 0;
  std::vector<std::string> left_out;
  for (const Judged& one : judged) {
    const FileRecord& record = one.record;
    if (max_bytes > 0 && num_bytes + one.size > max_bytes) {
      left_out.push_back(record.name);
      continue;
    }
    num_bytes += one.size;
    const hub::DigestKind kind = hub::KindOfDigest(record.digest);
    DSV4_ASSIGN_OR_RETURN(const std::string digest, kind == hub::DigestKind::kSha256
                                                        ? sha256(record.name)
                                                        : DigestOfFile(directory + "/" + record.name, kind));
    if (digest == record.digest) {
      ++num_right;
    } else {
      complaints.push_back(fmt::format("{} is not the file of {}: digest {}, wanted {}", record.name,
                                       record.source, digest, record.digest));
    }
  }

  if (fs::is_regular_file(directory + "/tokenizer.json", error)) {
    DSV4_ASSIGN_OR_RETURN(const std::string digest, sha256("tokenizer.json"));
    const auto known = std::find_if(kKnownFiles.begin(), kKnownFiles.end(), [&](const KnownFile& one) {
      return one.name == "tokenizer.json" && one.digest == digest;
    });
    report.evidence.push_back(known == kKnownFiles.end()
                                  ? fmt::format("tokenizer.json: SHA-256 {}, none that is known here", digest)
                                  : fmt::format("tokenizer.json: that of {}", known->release));
  }
  if (!records.empty() || !complaints.empty())
    report.evidence.push_back(fmt::format("{} as recorded, {}", Counted(num_right, "file is", "files are"),
                                          Counted(num_bytes, "byte read", "bytes read")));
  if (!left_out.empty()) {
    report.evidence.push_back(
        fmt::format("not read, for their size: {} and {} more; dsv4 diagnose files reads all",
                    left_out.front(), left_out.size() - 1));
  }
  report.evidence.insert(report.evidence.end(), complaints.begin(), complaints.end());
  if (!complaints.empty()) {
    report.verdict = Verdict::kFinding;
    report.headline = complaints.size() == 1
                          ? complaints[0]
                          : fmt::format("{}, and {} more", complaints[0], complaints.size() - 1);
    report.next_step = "fetch the file again, or take the record away where the file was changed on purpose";
  } else if (judged.empty() || num_right == 0) {
    report.verdict = Verdict::kNotApplicable;
    report.headline = "no digest of these files is recorded beside them or known here";
    report.next_step =
        "sha256sum of the source's files, as SHA256SUMS in the directory, makes this check decide";
  } else {
    report.headline =
        fmt::format("{} byte for byte those that were recorded", Counted(num_right, "file is", "files are"));
    report.rules_out = {"damage to these files since they were recorded"};
    report.next_step = "dsv4 diagnose prompt";
  }
  return report;
}

}  // namespace dsv4::diag
