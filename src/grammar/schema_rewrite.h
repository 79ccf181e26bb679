// Keywords of JSON Schema that are said by others: one step of rewriting a schema, before it is flattened.
// Internal to this module.
#pragma once

#include <functional>
#include <string>

#include "base/json.h"
#include "base/status.h"
#include "grammar/dfa.h"

namespace dsv4::grammar {

// Keywords that only this module writes into schemas. A document that has one gets what it says: each
// narrows.
inline constexpr const char* kNotValues = "\x01not";  // A list of scalars, none of which the value is.
inline constexpr const char* kAlsoStrings =
    "\x01also";  // A list of {"pattern"} and {"format"}, all of which a string satisfies.
inline constexpr const char* kNotPatterns =
    "\x01notpattern";  // A list of patterns that are not found in the string.

// The schema that "#/..." names.
using ResolveSchema = std::function<Result<Json>(const std::string& reference)>;

// The schema in which allOf, anyOf and the keywords above say all others:
//   `not`, `if`, `then`, `else`, `dependentRequired`, `dependentSchemas`, `nullable`,
//   and the words of older drafts (a list as `items`, `additionalItems`, `dependencies`, true as
//   `exclusiveMinimum`).
// It may be stricter than the schema, never looser. InvalidArgument names what cannot be said;
// ResourceExhausted when the limits are spent.
Result<Json> Rewritten(const Json& schema, const std::string& pointer, const ResolveSchema& resolve,
                       DfaLimits& limits);

}  // namespace dsv4::grammar
