// The table of the fields that requests may have, and the form of the table of routes (service_routes.cc).
// /openapi.json is made of both. The service finds its endpoints in the one; the readers of requests are
// checked against the other.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace dsv4::server {

// The readers of requests.
enum ApiReader : uint32_t {
  kNoBody = 0,
  kChat = 1,
  kCompletions = 2,
  kResponses = 4,
  kMessages = 8,
  kTurns = kChat | kResponses | kMessages,
  kGenerate = kChat | kCompletions | kResponses | kMessages,
};

class Reply;
class Service;
struct Caller;
struct HttpRequest;

struct ApiField {
  std::string_view name;
  std::string_view type;  // JSON's; alternatives with '|', items of an array behind ':'.
  uint32_t readers;       // ApiReader bits.
  std::string_view says;
  bool required = false;
};

// One endpoint: all that the server and the document know of it.
struct ApiRoute {
  std::string_view method;
  std::string_view path;  // A final '/' stands for whatever follows.
  Result<std::unique_ptr<Reply>> (Service::*handler)(HttpRequest& request, const Caller& caller);
  std::string_view says;
  ApiReader reader = kNoBody;
  std::span<const ApiField> own_fields = {};  // Fields of a body that no reader of the dialects sees.
  bool open = false;                          // Needs no API key: load balancers have none.
  bool at_once = false;  // Never waits for work of others: says whether the server lives.
  std::string_view content_type = "application/json";
};

// By name.
std::span<const ApiField> ApiFields();

// Names that a reader has asked for and the table lacks, or the other way round.
std::vector<std::string> TableFaults(ApiReader reader, const std::vector<std::string>& asked_for);

// The document of /openapi.json (OpenAPI 3.1) on these routes; `version` is the program's.
std::string OpenApiDocument(std::string_view version, std::span<const ApiRoute> routes);

}  // namespace dsv4::server
