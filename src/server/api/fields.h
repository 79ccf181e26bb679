// Reads the members of a JSON object from a request, by type. The first mistake is kept and names the field;
// what follows it reads nothing. A null member is an absent one.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "chat/json_value.h"

namespace dsv4::server {

class Fields {
 public:
  // `object` outlives this; `path` is what precedes the names in errors ("tools[0].").
  explicit Fields(const chat::JsonValue& object, std::string path = "");

  // Each leaves *value alone when the member is absent, and returns whether it was read.
  bool Read(std::string_view name, bool* value);
  bool Read(std::string_view name, int* value);
  bool Read(std::string_view name, int64_t* value);
  // 64 bits, however they are written: a negative integer is that of its two's complement.
  bool Read(std::string_view name, uint64_t* value);
  bool Read(std::string_view name, float* value);
  bool Read(std::string_view name, std::string* value);
  bool ReadObject(std::string_view name, const chat::JsonValue** value);
  bool ReadList(std::string_view name, const chat::JsonValue** value);
  bool ReadStrings(std::string_view name,
                   std::vector<std::string>* value);                    // A string, or a list of strings.
  bool ReadTokens(std::string_view name, std::vector<int32_t>* value);  // A list of integers.
  // The member, whatever it is; null when absent.
  const chat::JsonValue* Find(std::string_view name);
  // Fields that are read elsewhere, so that they do not count as unknown.
  void Expect(std::initializer_list<std::string_view> names);

  void Fail(std::string_view name, std::string_view what);
  // Keeps the mistake of an inner object's fields, unless there was one before.
  void Adopt(const Status& inner);
  // Ok, or the first mistake (InvalidArgument).
  const Status& status() const { return status_; }
  // Names that were asked for, or expected, whether the object has them or not.
  std::vector<std::string> asked_for() const { return {known_.begin(), known_.end()}; }
  // Members that were not asked for and are not null.
  std::vector<std::string> Unknown() const;

 private:
  bool ReadInteger(std::string_view name, int64_t lowest, int64_t highest, int64_t* value);
  const chat::JsonValue* FindUnlessFailed(std::string_view name);

  const chat::JsonValue& object_;
  std::string path_;
  Status status_;
  std::set<std::string, std::less<>> known_;
};

// An integer that fits; false otherwise.
bool ToInteger(const chat::JsonValue& value, int64_t* integer);
// A list of token ids, packed or not. InvalidArgument calls it `name`.
Status ToTokens(const chat::JsonValue& value, std::string_view name, std::vector<int32_t>* tokens);
// The members of a request that ToTokens reads.
inline constexpr std::string_view kTokenLists[] = {"prompt", "tokens", "stop_token_ids", "allowed_token_ids"};

// The field that an error message names: "temperature: got ..." gives "temperature"; empty when it names
// none.
std::string FieldOf(const Status& status);

}  // namespace dsv4::server
