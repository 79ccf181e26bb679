// The one table of the server's routes and of the fields that requests may have. /openapi.json is made of it, the service finds its endpoints
// in it, and the readers of requests are checked against it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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

enum class Endpoint : uint8_t {
  kPage,
  kHealth,
  kReady,
  kVersion,
  kMetrics,
  kOpenApi,
  kProps,
  kTokenizerInfo,
  kModels,
  kChatCompletions,
  kCompletions,
  kMessages,
  kCountTokens,
  kResponses,
  kStoredResponse,
  kTokenize,
  kDetokenize,
  kOllamaChat,
  kOllamaTags,
  kOllamaVersion,
};

struct ApiRoute {
  std::string_view method;
  std::string_view path;  // A final '/' stands for whatever follows.
  Endpoint endpoint;
  std::string_view says;
  ApiReader reader = kNoBody;
  bool open = false;  // Needs no API key: load balancers have none.
};

std::span<const ApiRoute> ApiRoutes();

struct ApiField {
  std::string_view name;
  std::string_view type;  // Of JSON; alternatives with '|', items of an array behind ':'.
  uint32_t readers;       // ApiReader bits.
  std::string_view says;
};

// By name.
std::span<const ApiField> ApiFields();

// Names that a reader has asked for and the table lacks, or the other way round.
std::vector<std::string> TableFaults(ApiReader reader, const std::vector<std::string>& asked_for);

// The document of /openapi.json (OpenAPI 3.1); `version` is the program's.
std::string OpenApiDocument(std::string_view version);

}  // namespace dsv4::server
