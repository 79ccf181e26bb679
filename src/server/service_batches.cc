// The endpoints of files and batches.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <stdexcept>
#include <utility>

#include "base/json.h"
#include "server/batch/batch_line.h"
#include "server/batch/batch_store.h"
#include "server/batch/multipart.h"
#include "server/service.h"
#include "server/service_parts.h"

namespace dsv4::server {
namespace {

constexpr std::string_view kNeedsFolder =
    "files and batches are stored where serve --batches-dir says; it was not given";

Result<std::unique_ptr<Reply>> OrText(Result<std::string> text) {
  if (!text) return Error(text.error());
  return MakeReply({}, std::move(*text));
}

// The rest behind `prefix`, without `suffix`, which is cut off where it is there.
struct Below {
  std::string id;
  bool has_suffix = false;
};
Below PathBelow(std::string_view path, std::string_view prefix, std::string_view suffix) {
  Below below;
  path.remove_prefix(std::min(path.size(), prefix.size()));
  if (path.ends_with('/')) path.remove_suffix(1);
  below.has_suffix = path.ends_with(suffix);
  if (below.has_suffix) path.remove_suffix(suffix.size());
  below.id = path;
  return below;
}

Result<std::string> Upload(BatchStore& store, const HttpRequest& request, uint64_t owner) {
  DSV4_ASSIGN_OR_RETURN(const std::vector<FormPart> parts,
                        ReadForm(request.Header("content-type"), request.body));
  const FormPart* file = nullptr;
  std::string_view purpose;
  for (const FormPart& part : parts) {
    if (part.name == "file") {
      if (file != nullptr) return Error(InvalidArgument("file: got two, wanted one"));
      file = &part;
    } else if (part.name == "purpose") {
      purpose = part.content;
    } else if (!part.content.empty()) {
      return Error(InvalidArgument(fmt::format("{}: not known here", part.name)));
    }
  }
  if (file == nullptr) return Error(InvalidArgument("file: missing, wanted a part with a file"));
  if (purpose != "batch")
    return Error(InvalidArgument(fmt::format("purpose: got '{}', wanted batch", purpose)));
  return store.AddFile(owner, file->file_name.empty() ? "file" : file->file_name, purpose, file->content);
}

Result<NewBatch> ReadNewBatch(const chat::JsonValue& body) {
  Fields fields(body);
  NewBatch batch;
  std::string window;
  if (!fields.Read("input_file_id", &batch.input_file))
    fields.Fail("input_file_id", "missing, wanted the id of a stored file");
  if (!fields.Read("endpoint", &batch.endpoint)) fields.Fail("endpoint", "missing, wanted a url");
  if (!fields.Read("completion_window", &window)) fields.Fail("completion_window", "missing, wanted 24h");
  DSV4_TRY(fields.status());
  if (window != "24h")
    return Error(InvalidArgument(fmt::format("completion_window: got '{}', wanted 24h", window)));
  DSV4_TRY(CheckBatchUrl("endpoint", batch.endpoint));
  if (const chat::JsonValue* metadata = fields.Find("metadata");
      metadata != nullptr && !metadata->is_null()) {
    if (!metadata->is_object())
      return Error(InvalidArgument(fmt::format("metadata: got {}, wanted an object", metadata->kind_name())));
    batch.metadata = chat::WriteJson(*metadata);
  }
  for (const auto& [name, value] : body.members()) {
    constexpr std::string_view kKnown[] = {"input_file_id", "endpoint", "completion_window", "metadata"};
    if (!value.is_null() && std::ranges::find(kKnown, name) == std::end(kKnown))
      return Error(InvalidArgument(fmt::format("{}: not known here", name)));
  }
  return batch;
}

constexpr std::string_view kBytes = "application/octet-stream";

// A file as its client takes it: the answers of a batch may be longer than any reply that is kept whole.
class FileReply final : public Reply {
 public:
  explicit FileReply(std::ifstream file) : file_(std::move(file)) {}
  void OnProgress(std::function<void()> wake) override { wake_ = std::move(wake); }
  void Advance(ReplyOutput& out) override {
    constexpr size_t kPiece = size_t{256} << 10;
    if (!std::exchange(begun_, true))
      out.head = HttpHead{.content_type = std::string(kBytes), .streamed = true};
    out.body.resize(kPiece);
    file_.read(out.body.data(), kPiece);
    out.body.resize(static_cast<size_t>(file_.gcount()));
    // The connection ends without the end of the reply, so the client sees that something is missing.
    if (file_.bad()) throw std::runtime_error("a stored file could not be read to its end");
    out.done = file_.eof();
    if (!out.done) wake_();
  }

 private:
  std::ifstream file_;
  std::function<void()> wake_;
  bool begun_ = false;
};

}  // namespace

Result<std::unique_ptr<Reply>> Service::Files(HttpRequest& request, const Caller& caller) {
  if (options_.batches == nullptr) return Fail(404, kNeedsFolder, request.path);
  if (request.method != "POST") return OrText(options_.batches->Files(caller.batch_owner, request.query));
  return OrText(Upload(*options_.batches, request, caller.batch_owner));
}

Result<std::unique_ptr<Reply>> Service::FileById(HttpRequest& request, const Caller& caller) {
  if (options_.batches == nullptr) return Fail(404, kNeedsFolder, request.path);
  const auto [id, wants_content] = PathBelow(request.path, "/v1/files/", "/content");
  BatchStore& store = *options_.batches;
  if (request.method == "DELETE" && !wants_content) {
    DSV4_TRY(store.EraseFile(caller.batch_owner, id));
    return MakeReply({}, JsonText({{"id", id}, {"object", "file"}, {"deleted", true}}));
  }
  if (!wants_content) return OrText(store.File(caller.batch_owner, id));
  DSV4_ASSIGN_OR_RETURN(std::ifstream content, store.Content(caller.batch_owner, id));
  if (request.method == "HEAD") return MakeReply({.content_type = std::string(kBytes)}, {});
  return std::make_unique<FileReply>(std::move(content));
}

Result<std::unique_ptr<Reply>> Service::Batches(HttpRequest& request, const Caller& caller) {
  if (options_.batches == nullptr) return Fail(404, kNeedsFolder, request.path);
  if (request.method != "POST") return OrText(options_.batches->Batches(caller.batch_owner, request.query));
  DSV4_ASSIGN_OR_RETURN(const chat::JsonValue body,
                        chat::ReadJson(request.body, "body", chat::JsonDialect::kRfc8259, {.finite = true}));
  DSV4_ASSIGN_OR_RETURN(const NewBatch batch, ReadNewBatch(body));
  return OrText(options_.batches->AddBatch(caller.batch_owner, batch));
}

Result<std::unique_ptr<Reply>> Service::BatchById(HttpRequest& request, const Caller& caller) {
  if (options_.batches == nullptr) return Fail(404, kNeedsFolder, request.path);
  const auto [id, cancels] = PathBelow(request.path, "/v1/batches/", "/cancel");
  if (cancels != (request.method == "POST"))
    return Fail(405, "a batch is read by GET, and ended by POST below /cancel", request.path);
  return OrText(cancels ? options_.batches->Cancel(caller.batch_owner, id)
                        : options_.batches->Batch(caller.batch_owner, id));
}

std::unique_ptr<Reply> Service::HandleOfBatch(HttpRequest request, uint64_t batch_owner) {
  const std::shared_ptr<const Callers> known = callers();
  const auto found = std::ranges::find(known->of_keys, batch_owner, &Caller::batch_owner);
  const bool without_key = known->keys.empty() && known->without_key.batch_owner == batch_owner;
  if (found == known->of_keys.end() && !without_key) return nullptr;
  Caller caller = without_key ? known->without_key : *found;
  caller.share =
      ~caller.share;  // One owner more, so that a batch takes no turn of its client's own requests.
  for (const ApiRoute& route : Routes()) {
    if (route.path == request.path && route.method == request.method)
      return OrFail((this->*route.handler)(request, caller), request.path);
  }
  return Fail(404, fmt::format("{}: no such endpoint", request.path), request.path);
}

}  // namespace dsv4::server
