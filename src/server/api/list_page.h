// A page of a list that the query of a request asks for, as OpenAI's lists have them: `limit`, `order`, `after`, `before`.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace dsv4::server {

// The value of `name` in "a=1&b=%20x", percent-decoded; empty where it is missing. The last of several counts.
std::string QueryValue(std::string_view query, std::string_view name);
// Names that the query gives, percent-decoded, each once; those without '=' too.
std::vector<std::string> QueryNames(std::string_view query);

struct ListLimits {
  int64_t limit;  // Entries of a page without one in the query.
  int64_t most;
};
constexpr ListLimits kItemLimits = {.limit = 20, .most = 100};
constexpr ListLimits kModelLimits = {.limit = 20, .most = 1000};
constexpr ListLimits kFileLimits = {.limit = 10000, .most = 10000};

// Parameters that turn the pages of a list.
struct PageNames {
  std::string_view after = "after";
  std::string_view before = "before";
};

struct ListPage {
  std::vector<size_t> indices;  // Into the ids, in the order of the reply.
  bool has_more = false;
};

// The page of a list whose ids go from the oldest to the newest; without `order` the newest comes first. InvalidArgument
// names what is no number, out of range, no order, or an id that the list lacks.
Result<ListPage> PageOf(std::string_view query, std::span<const std::string> ids, const ListLimits& limits,
                        const PageNames& names = {});

}  // namespace dsv4::server
