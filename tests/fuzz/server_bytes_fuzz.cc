// Bytes that the server reads beside bodies of JSON; the first chooses. There are uploaded forms, lines of batches and of their answers.
// There are fields of heads: who asks, through which proxies, of which page, in which trace. There are kept responses and batches as their
// folders have them. Each is taken or refused with a text; nothing is thrown.
#include <filesystem>
#include <string>
#include <string_view>

#include "base/check.h"
#include "folder.h"
#include "server/api/browser_rules.h"
#include "server/api/response_store.h"
#include "server/batch/batch_files.h"
#include "server/batch/batch_line.h"
#include "server/batch/batch_store.h"
#include "server/batch/multipart.h"
#include "server/http/trusted_proxies.h"
#include "server/observe/trace_exporter.h"

namespace dsv4::server {
namespace {

constexpr uint64_t kOwner = 0x1234;
constexpr std::string_view kFileId = "file-00ab";
constexpr std::string_view kBatchId = "batch_00cd";
constexpr std::string_view kResponseId = "resp_00ef";

template <typename Value>
bool Check(const Result<Value>& result) {
  DSV4_CHECK(result.has_value() || !result.error().message().empty());
  return result.has_value();
}

// The first line is the content type.
bool Form(std::string_view text) {
  const size_t end = text.find('\n');
  if (end == std::string_view::npos) return false;
  const std::string_view body = text.substr(end + 1);
  const auto parts = ReadForm(text.substr(0, end), body);
  if (!Check(parts)) return false;
  for (const FormPart& part : *parts) {
    DSV4_CHECK(!part.name.empty());
    DSV4_CHECK(part.content.empty() ||
               (part.content.data() >= body.data() &&
                part.content.data() + part.content.size() <= body.data() + body.size()));
  }
  return true;
}

bool Line(std::string_view text) {
  const auto line = ReadBatchLine(text, 1);
  if (Check(line)) {
    DSV4_CHECK(CheckBatchUrl("url", line->url).ok() && line->body.starts_with('{'));
  }
  const auto answered = ReadAnsweredLine(text);
  if (!Check(answered)) return line.has_value();
  const BatchAnswer answer{
      .custom_id = answered->custom_id, .request_id = "r", .status = answered->ok ? 200 : 500, .body = "{}"};
  std::string written = WriteBatchAnswer(answer);
  DSV4_CHECK(written.ends_with('\n') && written.find('\n') == written.size() - 1);
  written.pop_back();
  const auto again = ReadAnsweredLine(written);
  DSV4_CHECK(again.has_value() && again->custom_id == answered->custom_id && again->ok == answered->ok);
  return true;
}

// Requests, and behind an empty line the answers that a killed run has left.
bool Files(std::string_view text) {
  static const testing::Folder folder;
  const size_t cut = text.find("\n\n");
  const std::string input = folder.With("input.jsonl", text.substr(0, cut));
  const std::string output =
      folder.With("output.jsonl", cut == std::string_view::npos ? std::string_view() : text.substr(cut + 2));
  auto files = BatchFiles::Open(input, output);
  if (!Check(files)) return false;
  DSV4_CHECK(files->num_answered() <= files->num_requests() && files->num_failed() <= files->num_answered());
  int64_t left = files->num_requests() - files->num_answered();
  for (;;) {
    auto next = files->Next();
    if (!Check(next) || !*next) break;
    --left;
    DSV4_CHECK(
        files->Put({.custom_id = (*next)->custom_id, .request_id = "r", .status = 200, .body = "{}"}).ok());
  }
  DSV4_CHECK(left == 0);
  DSV4_CHECK(files->Flush().ok());
  return true;
}

// Lines: X-Forwarded-For, Host, Origin, traceparent, tracestate, a proxy of the option.
bool Heads(std::string_view text) {
  std::string fields[6];
  for (std::string& field : fields) {
    field = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), field.size() + 1));
  }
  std::vector<std::string> proxies = {"10.0.0.0/8", "::1", "unix"};
  if (TrustedProxies::Check(fields[5]).ok()) proxies.push_back(fields[5]);
  const TrustedProxies trusted(proxies);
  for (const char* peer : {"10.1.2.3", "::1", "", "192.0.2.1"}) {
    const std::string client = trusted.ClientOf(peer, fields[0]);
    DSV4_CHECK(client == peer || fields[0].find(client) != std::string::npos) << client;
  }
  const std::vector<std::string> names = {"own.example"};
  const bool allowed = IsAllowedHost(fields[1], names);
  HttpRequest request{
      .method = "POST", .path = "/v1/models", .headers = {{"host", fields[1]}, {"origin", fields[2]}}};
  // A name with a dot that is none of ours is another page's. No head that is read has a zero in it.
  const bool is_name = fields[1].ends_with(".example") && fields[1].find(':') == std::string::npos &&
                       fields[1].find('\0') == std::string::npos;
  DSV4_CHECK(!is_name || !allowed || fields[1].size() == names[0].size()) << fields[1];
  (void)IsAllowedOrigin(request, "https://own.example");
  const RequestTrace trace{.traceparent = fields[3],
                           .tracestate = fields[4],
                           .request_id = "r",
                           .method = "POST",
                           .route = "/v1/models",
                           .operation = "chat",
                           .end = "done"};
  const TraceOptions options{.url = "http://127.0.0.1:1"};
  (void)IsSampled(trace, options);
  DSV4_CHECK(!EncodeTraces({trace}, options, "m", "v").empty());
  return allowed;
}

bool Response(std::string_view text) {
  const testing::Folder folder;
  folder.With(std::string(kResponseId) + ".json", text);
  auto store = ResponseStore::Open({.directory = folder.path()});
  DSV4_CHECK(store.has_value()) << store.error().ToString();
  const std::string id(kResponseId);
  DSV4_CHECK(ResponseOfItem(ItemId("msg_", id, 0)) == id);
  (void)Check((*store)->Conversation(kOwner, id));
  const auto got = (*store)->Get(kOwner, id);
  if (!Check(got)) return false;
  (*store)->Put(kOwner, id, *got);
  DSV4_CHECK((*store)->Get(kOwner, id).has_value());
  DSV4_CHECK((*store)->Erase(kOwner, id).ok());
  return true;
}

// The object of a file or of a batch.
bool Batches(std::string_view text) {
  const testing::Folder folder;
  const std::string file(kFileId);
  const std::string batch(kBatchId);
  folder.With("files/" + file + ".json", text);
  folder.With("files/" + file + ".data", "{}\n");
  folder.With("batches/" + batch + ".json", text);
  folder.With("batches/" + batch + ".answers", text);
  auto opened = BatchStore::Open({.directory = folder.path(), .max_bytes = 1 << 20});
  DSV4_CHECK(opened.has_value()) << opened.error().ToString();
  BatchStore& store = **opened;
  (void)store.Files(kOwner);
  (void)store.Batches(kOwner);
  const bool has_file = Check(store.File(kOwner, file));
  const bool has_batch = Check(store.Batch(kOwner, batch));
  DSV4_CHECK(!has_file || !has_batch);
  (void)Check(store.AddFile(kOwner, "f", "batch", "{}"));
  (void)Check(store.AddBatch(kOwner, {.endpoint = "/v1/responses", .input_file = file}));
  (void)store.IsCancelling(batch);
  if (const auto job = store.Oldest()) {
    DSV4_CHECK(std::filesystem::path(job->input_path).parent_path() == folder.path() + "/files")
        << job->input_path;
    DSV4_CHECK(store.Begin(job->id).ok() && store.Count(job->id, 2, 1, 0).ok());
    (void)Check(store.Cancel(job->owner, job->id));
    DSV4_CHECK(store.End(job->id, BatchEnd::kCancelled).ok());
  }
  (void)store.EraseFile(kOwner, file);
  return has_file || has_batch;
}

}  // namespace
}  // namespace dsv4::server

extern "C" bool FuzzInputIsAccepted(const uint8_t* data, size_t size) {
  using namespace dsv4::server;
  if (size == 0) return false;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 6) {
    case 0:
      return Form(text);
    case 1:
      return Line(text);
    case 2:
      return Files(text);
    case 3:
      return Heads(text);
    case 4:
      return Response(text);
    default:
      return Batches(text);
  }
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)FuzzInputIsAccepted(data, size);
  return 0;
}
