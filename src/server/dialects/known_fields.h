// Fields of requests that other servers know, that would change an answer, and that this one does not have: the one list of them.
//
// A request that sends one with a value that asks for something is refused, and told which field: an answer that is not what was asked for
// looks like one that is. Values that ask for nothing (null, false where that is the default, nothing in it, or the field's own default) are taken, since clients send them.
// Fields that no server knows, or that change no answer (user, service_tier, metadata), are not in it.
#pragma once

#include <span>
#include <string_view>

#include "server/api/api_table.h"
#include "server/api/fields.h"

namespace dsv4::server {

struct KnownField {
  std::string_view name;
  std::string_view of;       // Whose: openai, anthropic, vllm, sglang, llama.cpp.
  std::string_view neutral;  // A JSON text that asks for nothing, beside those that never do; or empty.
  std::string_view instead;  // What does the same here; or empty.
};

// By name.
std::span<const KnownField> UnsupportedFields();

// Fails for the first of them that `fields` was not asked for and that asks for something. Call it once all fields have been read.
void RefuseUnsupported(Fields& fields);
// The same for the body of a request; the first of a reader is also checked against the table of fields (api_table.h).
void RefuseUnsupported(Fields& fields, ApiReader reader);

}  // namespace dsv4::server
