// Fields of requests that this server does not read. Some it refuses, some it takes because they change no
// answer, and some are unknown.
//
// Refused are fields that other servers know, that would change an answer, and that this one does not have.
// This is the one list of them. A request that sends one with a value that asks for something is refused, and
// told which field. A wrong answer would look like a right one. Values that ask for nothing are taken, since
// clients send them. They are null, false where that is the default, an empty value, and the field's own
// default.
//
// Fields that change no answer (user, service_tier, metadata) have a list of their own, which docs/serving.md
// shows. A field in none of the lists may be a client's slip or newer than this server. It is named to the
// client, or refused where the server is told so.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/api_table.h"
#include "server/api/chat_call.h"
#include "server/api/fields.h"
#include "server/api/served_model.h"

namespace dsv4::server {

struct KnownField {
  std::string_view name;
  std::string_view of;       // Origin: openai, anthropic, vllm, sglang, llama.cpp.
  std::string_view neutral;  // A JSON text that asks for nothing, beside those that never do; or empty.
  std::string_view instead;  // Field that does the same here; or empty.
  // The field without which this one does nothing, whatever it says; alternatives with '|', or empty.
  std::string_view only_beside = {};
};

// By name.
std::span<const KnownField> UnsupportedFields();

// Fields that are taken without effect, and why.
struct IdleFields {
  std::string_view why;
  std::span<const std::string_view> names;
};
std::span<const IdleFields> FieldsWithoutEffect();

// Fields that ResolveThinking reads, so that they do not count as unknown.
void ExpectThinking(Fields& fields);

// Fails for the first of them that `fields` was not asked for and that asks for something. Call it once all fields have been read.
void RefuseUnsupported(Fields& fields);
// Keeps the members of a body that are in no list in `unknown`, those of its objects of options too
// ("text.verbosity"). Fails for the first of them where the model's server refuses such. Members of messages,
// of their parts and of tools are not looked at.
void NoteUnknown(Fields& fields, const chat::JsonValue& body, ApiReader reader, const ServedModel& model,
                 std::vector<std::string>& unknown);
// InvalidArgument names the first picture in the messages or the input, where the model reads pictures and this engine does not yet. Other
// models are given a text in its place (chat::UnseenPart).
Status RefusePictures(const ServedModel& model, const chat::JsonValue& body);
// All three, for the body of a request. The first of a reader is also checked against the table of fields (api_table.h).
void CheckFields(Fields& fields, const chat::JsonValue& body, ApiReader reader, const ServedModel& model,
                 SamplingCall& call);

}  // namespace dsv4::server
