// Entry points from JSON Schema and JSON mode to a program.
#include "grammar/json_schema.h"

#include <fmt/format.h>

#include <utility>

#include "base/json.h"
#include "base/text.h"
#include "grammar/schema_compiler.h"

namespace dsv4::grammar {

Result<Json> ParseSchema(std::string_view schema) {
  constexpr size_t kMaxSchemaBytes = size_t{256} << 10;
  if (schema.size() > kMaxSchemaBytes) {
    return Error(InvalidArgument(fmt::format("json schema: {}, at most {} are compiled",
                                             Counted(schema.size(), "byte"), kMaxSchemaBytes)));
  }
  return ParseJson(schema, "json schema");
}

Result<std::shared_ptr<const Program>> CompileJsonSchema(std::string_view schema) {
  DSV4_ASSIGN_OR_RETURN(const Json document, ParseSchema(schema));
  GrammarParts parts;
  SchemaCompiler compiler(parts, document, {});
  DSV4_ASSIGN_OR_RETURN(const uint32_t start, compiler.Rule(document, ""));
  DSV4_TRY(compiler.Finish());
  Result<Program> program = std::move(parts.builder).Build(start);
  if (!program) return Error(program.error().WithContext("json schema"));
  program->work = parts.work();
  return std::make_shared<const Program>(std::move(*program));
}

}  // namespace dsv4::grammar
