// Writes random texts of JSON schemas, as sampling under their masks would give: one schema a line on standard input, one JSON
// document a line out, {"texts": [...]} or {"error": "..."}. For json_schema_property_test.py.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "base/json.h"
#include "grammar/json_schema.h"
#include "grammar/testing.h"

namespace {

using dsv4::Json;
namespace grammar = dsv4::grammar;

// Ends are chosen more often the longer the text is; empty when it never ended.
std::string Walk(grammar::Matcher matcher, std::mt19937& random) {
  std::string text;
  grammar::TokenMask mask(matcher.num_ids());
  for (int step = 0; step < 4000; ++step) {
    matcher.Mask(mask);
    if (mask.IsAllowed(grammar::testing::kStop) && random() % 400 < 100 + static_cast<unsigned>(step)) {
      return matcher.Accept(grammar::testing::kStop).ok() ? text : "";
    }
    std::vector<grammar::TokenId> ids;
    for (grammar::TokenId id = 0; id < matcher.num_ids(); ++id) {
      if (id != grammar::testing::kStop && mask.IsAllowed(id)) ids.push_back(id);
    }
    if (ids.empty()) continue;
    grammar::TokenId id = ids[random() % ids.size()];
    for (const grammar::TokenId other : ids) {  // Quotes and brackets end what would go on for long.
      const auto bytes = grammar::testing::ToyTrie()->BytesOf(other);
      const bool ends = bytes.size() == 1 && (bytes[0] == '"' || bytes[0] == ']' || bytes[0] == '}');
      if (ends && random() % 800 < 80 + static_cast<unsigned>(step)) id = other;
    }
    if (!matcher.Accept(id).ok()) return "";
    const auto bytes = grammar::testing::ToyTrie()->BytesOf(id);
    text.append(bytes.begin(), bytes.end());
  }
  return "";
}

}  // namespace

int main() {
  std::mt19937 random(7);
  std::string line;
  while (std::getline(std::cin, line)) {
    Json out;
    const auto program = grammar::CompileJsonSchema(line);
    if (!program) {
      out["error"] = program.error().message();
    } else {
      out["texts"] = Json::array();
      for (int i = 0; i < 6; ++i) {
        const std::string text =
            Walk(grammar::Matcher(*program, grammar::testing::ToyTrie(), {grammar::testing::kStop}), random);
        out["texts"].push_back(text.empty() ? Json(nullptr) : Json(text));
      }
    }
    std::cout << out.dump() << '\n';
  }
}
