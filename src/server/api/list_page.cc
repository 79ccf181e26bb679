// Pages of lists: reading the query, and the cut.
#include "server/api/list_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "base/text.h"

namespace dsv4::server {

namespace {

// A part of a query: a plus is a blank, as forms have it.
std::string Decoded(std::string_view part) {
  std::string text(part);
  std::ranges::replace(text, '+', ' ');
  return PercentDecoded(text);
}

// Calls use(name, value) for each pair.
template <class Use>
void ForEachPair(std::string_view query, const Use& use) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    const size_t equals = std::min(pair.find('='), pair.size());
    use(Decoded(pair.substr(0, equals)), pair.substr(std::min(equals + 1, pair.size())));
  }
}

}  // namespace

std::string QueryValue(std::string_view query, std::string_view name) {
  std::string found;
  ForEachPair(query, [&](const std::string& one, std::string_view value) {
    if (one == name) found = Decoded(value);
  });
  return found;
}

std::vector<std::string> QueryNames(std::string_view query) {
  std::vector<std::string> names;
  ForEachPair(query, [&](const std::string& name, std::string_view) {
    if (!name.empty() && std::ranges::find(names, name) == names.end()) names.push_back(name);
  });
  return names;
}

Result<ListPage> PageOf(std::string_view query, std::span<const std::string> ids, const ListLimits& limits,
                        const PageNames& names) {
  int64_t limit = limits.limit;
  if (const std::string text = QueryValue(query, "limit"); !text.empty()) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), limit);
    if (error != std::errc() || end != text.data() + text.size() || limit < 1 || limit > limits.most)
      return Error(InvalidArgument(fmt::format("limit: got '{}', wanted 1 to {}", text, limits.most)));
  }
  const std::string order = QueryValue(query, "order");
  if (!order.empty() && order != "asc" && order != "desc")
    return Error(InvalidArgument(fmt::format("order: got '{}', wanted asc or desc", order)));

  std::vector<size_t> indices(ids.size());
  std::iota(indices.begin(), indices.end(), size_t{0});
  if (order != "asc") std::ranges::reverse(indices);
  const auto find = [&](std::string_view name, size_t missing) -> Result<size_t> {
    const std::string id = QueryValue(query, name);
    if (id.empty()) return missing;
    const auto found = std::ranges::find_if(indices, [&](size_t i) { return ids[i] == id; });
    if (found == indices.end())
      return Error(InvalidArgument(fmt::format("{}: '{}' is not in this list", name, id)));
    return static_cast<size_t>(found - indices.begin()) + (name == names.after ? 1 : 0);
  };
  DSV4_ASSIGN_OR_RETURN(size_t begin, find(names.after, 0));
  DSV4_ASSIGN_OR_RETURN(size_t end, find(names.before, indices.size()));
  end = std::max(begin, end);
  const size_t count = std::min(end - begin, static_cast<size_t>(limit));
  // Going back from `before` alone, a page ends where that begins.
  const bool goes_back = begin == 0 && end < indices.size();
  const bool has_more = count < end - begin;
  if (goes_back) begin = end - count;
  return ListPage{.indices = {indices.begin() + static_cast<std::ptrdiff_t>(begin),
                              indices.begin() + static_cast<std::ptrdiff_t>(begin + count)},
                  .has_more = has_more};
}

}  // namespace dsv4::server
