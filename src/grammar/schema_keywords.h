// Which words of JSON Schema (draft 2020-12) are understood, and how two schemas become one.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/status.h"
#include "grammar/dfa.h"

namespace dsv4::grammar {

// A position in the schema document: a JSON pointer such as "/properties/a~1b/items"; "" is the document.
std::string Below(const std::string& pointer, std::string_view key);
std::string Below(const std::string& pointer, size_t index);
// "json schema, /items: <what>".
Status SchemaError(const std::string& pointer, const std::string& what);

// InvalidArgument that names the first keyword which is not understood or has a value of the wrong type.
// Annotations, `x-...` and values that constrain nothing (`"uniqueItems": false`) pass.
Status CheckKeywords(const Json& schema, const std::string& pointer);
// The schema without the keywords that CheckKeywords complains of.
Json Understood(const Json& schema);
// The schema without annotations: equal for positions that allow the same and are described differently.
Json WithoutAnnotations(const Json& schema);
// A whole number from 0 on, however it is written (3, 3.0).
bool IsCount(const Json& value);
// The count of a keyword, where the schema has it; those beyond 10^9, which no text has, are that.
std::optional<size_t> CountOf(const Json& schema, const char* keyword);
// Whether any keyword but `except` narrows what is allowed.
bool Constrains(const Json& schema, std::string_view except);

// Takes from the limits what it costs to look at the schema and to copy it a few times: rewriting and
// automata have one budget. ResourceExhausted when it is spent.
Status Spend(const Json& schema, const std::string& pointer, DfaLimits& limits);

// Replaces $ref and allOf by what they stand for (anyOf stays).
class SchemaFlattener {
 public:
  // All outlive this. `lenient`: what is not understood is left out.
  SchemaFlattener(const Json& document, DfaLimits& limits, bool lenient)
      : document_(document), limits_(limits), lenient_(lenient) {}

  // The part of the document that "#/..." names.
  Result<const Json*> Resolve(const std::string& reference, const std::string& pointer) const;
  // InvalidArgument when parts contradict each other in a way that is not understood; `false` stands for
  // nothing.
  Result<Json> Flatten(const Json& schema, const std::string& pointer, int depth = 0);
  // The schema with what other keywords can say said by them (schema_rewrite.h).
  Result<Json> Rewrite(const Json& schema, const std::string& pointer) const;
  // Schema of what satisfies both; both are flat.
  Result<Json> Merge(const Json& a, const Json& b, const std::string& pointer);

 private:
  const Json& document_;
  DfaLimits& limits_;
  bool lenient_;
};

}  // namespace dsv4::grammar
