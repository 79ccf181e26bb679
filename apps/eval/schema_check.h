// Whether a JSON value satisfies a JSON schema, as a judge of calls: of draft 2020-12 the keywords that
// schemas of tools use.
#pragma once

#include <string>

#include "base/json.h"

namespace dsv4::apps {

// Empty, or what is wrong and where: "/city: missing". Keywords that are not known, `format` among them, do
// not judge.
std::string SchemaComplaint(const Json& value, const Json& schema);

}  // namespace dsv4::apps
