// Rules of a request for the content of an answer beside `response_format` with a schema, under the names
// that servers gave it.
//
//   guided_json, guided_regex, guided_choice, guided_grammar          vLLM, older
//   structured_outputs {json, regex, choice, grammar, json_object, structural_tag}   vLLM
//   json_schema, regex, ebnf, structural_tag                          SGLang
//   grammar, json_schema                                              llama.cpp
//   response_format {type: regex | grammar | ebnf | structural_tag}   several
#pragma once

#include <optional>

#include "chat/json_value.h"
#include "grammar/rules/content_rule.h"
#include "server/api/fields.h"

namespace dsv4::server {

// Mistakes stay in `fields`: a value of another type, and two of these fields in one request.
void ReadContentRule(Fields& fields, std::optional<grammar::ContentRule>& rule);

// A format of `response_format` that is no schema of a prompt. Returns whether it is one; mistakes stay in
// `fields`.
bool ReadFormatRule(Fields& fields, const chat::JsonValue& format, std::optional<grammar::ContentRule>& rule);

}  // namespace dsv4::server
