// JSON mode and JSON Schema as grammars.
//
// Keywords of draft 2020-12:
//   type, enum, const, anyOf, oneOf (as anyOf: whether only one fits is not checked), allOf,
//   $ref (into the same document, recursion included), properties, required, additionalProperties,
//   items, prefixItems, minItems, maxItems, minLength, maxLength, pattern, format,
//   minimum, maximum and their exclusive forms.
// A keyword that is not understood and would constrain is an error, never ignored.
//
// Every text of the grammar satisfies the schema; the opposite does not hold. Members come in the order of
// `properties`, others behind them, these without escapes in their names. Integers are written without point
// or exponent. Without `type`, keywords of one type mean that type. A value of `enum` is written in one way.
#pragma once

#include <memory>
#include <string_view>

#include "base/json.h"
#include "base/status.h"
#include "grammar/program.h"

namespace dsv4::grammar {

// The grammar of `schema`, a JSON text. InvalidArgument names the position in the schema by its JSON pointer;
// ResourceExhausted when the grammar becomes too large. Time and memory are bounded whatever the schema says.
Result<std::shared_ptr<const Program>> CompileJsonSchema(std::string_view schema);

// A schema that is not too large to compile, parsed.
Result<Json> ParseSchema(std::string_view schema);

}  // namespace dsv4::grammar
