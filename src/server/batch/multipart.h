// Bodies of multipart/form-data (RFC 7578), as clients upload files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace dsv4::server {

struct FormPart {
  std::string name;
  std::string file_name;     // Empty: a plain field.
  std::string_view content;  // Into the body.
};

// InvalidArgument for a content type without a boundary, and for a body that does not keep to it.
Result<std::vector<FormPart>> ReadForm(std::string_view content_type, std::string_view body);

}  // namespace dsv4::server
