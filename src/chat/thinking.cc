// Spellings of switches, efforts and budgets of reasoning, and how each is read.
#include "chat/thinking.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <vector>

#include "base/text.h"

namespace dsv4::chat {
namespace {

enum class Wish : uint8_t {
  kSwitch,
  kOff,  // True: no reasoning.
  kEffort,
  kBudget,
  kDropped,
  kKept,
  kHistory,  // A word on the reasoning of earlier turns.
  kShown,
  kHidden,
  kFormat,  // The form of the reasoning in the answer, in a word.
};

struct Spelling {
  std::string_view path;
  Wish wish;
  std::string_view type = {};  // JSON's, where it is not the wish's own.
};

// In front of what stands inside of the arguments of a template.
constexpr Spelling kFirst[] = {
    {"thinking", Wish::kSwitch, "boolean|object|string"},
    {"thinking.enabled", Wish::kSwitch},
    {"thinking.type", Wish::kSwitch},
    {"think", Wish::kSwitch, "boolean|string"},
    {"reasoning", Wish::kSwitch, "object|boolean|string"},
    {"reasoning.enabled", Wish::kSwitch},
    {"reasoning.type", Wish::kSwitch},
    {"reasoning_effort", Wish::kEffort, "string|integer|boolean"},
    {"reasoning.effort", Wish::kEffort},
    {"output_config.effort", Wish::kEffort},
    {"thinking.effort", Wish::kEffort},
    {"thinking.budget_tokens", Wish::kBudget},
    {"thinking.token_budget", Wish::kBudget},
    {"thinking.max_tokens", Wish::kBudget},
    {"thinking_budget", Wish::kBudget},
    {"thinking_token_budget", Wish::kBudget},
    {"thinking_budget_tokens", Wish::kBudget},
    {"reasoning_budget", Wish::kBudget},
    {"reasoning_budget_tokens", Wish::kBudget},
    {"max_thinking_tokens", Wish::kBudget},
    {"max_reasoning_tokens", Wish::kBudget},
    {"reasoning_max_tokens", Wish::kBudget},
    {"reasoning.max_tokens", Wish::kBudget},
    {"reasoning.budget_tokens", Wish::kBudget},
    {"drop_thinking", Wish::kDropped},
    {"clear_thinking", Wish::kDropped},
    {"thinking.clear_thinking", Wish::kDropped},
    {"truncate_history_thinking", Wish::kDropped},
    {"preserve_thinking", Wish::kKept},
    {"preserve_reasoning", Wish::kKept},
    {"keep_thinking", Wish::kKept},
    {"thinking.keep", Wish::kHistory},
    {"reasoning_history", Wish::kHistory},
    {"reasoning.exclude", Wish::kHidden},
    {"include_reasoning", Wish::kShown},
    {"reasoning_format", Wish::kFormat},
};
// Objects of the arguments of a template. They may have every spelling.
constexpr std::string_view kArguments[] = {"chat_template_kwargs", "chat_template_args"};
constexpr Spelling kThen[] = {
    {"enable_thinking", Wish::kSwitch},
    {"enableThinking", Wish::kSwitch},
    {"thinking_enabled", Wish::kSwitch},
    {"enable_reasoning", Wish::kSwitch},
    {"thinking_mode", Wish::kSwitch, "string"},
    {"prompt_mode", Wish::kSwitch, "string"},
    {"reasoning_config.type", Wish::kSwitch},
    {"disable_reasoning", Wish::kOff},
    {"disable_thinking", Wish::kOff},
    {"no_think", Wish::kOff},
    {"venice_parameters.disable_thinking", Wish::kOff},
    {"think", Wish::kEffort},
    {"thinking", Wish::kEffort},
    {"reasoning", Wish::kEffort},
    {"thinking_level", Wish::kEffort},
    {"thinkingLevel", Wish::kEffort},
    {"thinking_effort", Wish::kEffort},
    {"reasoningEffort", Wish::kEffort},
    {"thinkingBudget", Wish::kBudget},
    {"budget_tokens", Wish::kBudget},
    {"budgetTokens", Wish::kBudget},
    {"reasoning_config.budget_tokens", Wish::kBudget},
    {"nvext.max_thinking_tokens", Wish::kBudget},
    {"venice_parameters.strip_thinking_response", Wish::kHidden},
};
// Google's objects, and their members.
constexpr std::string_view kOfGoogle[] = {"thinking_config",
                                          "thinkingConfig",
                                          "google.thinking_config",
                                          "google.thinkingConfig",
                                          "generation_config.thinking_config",
                                          "generationConfig.thinkingConfig"};
constexpr Spelling kGoogle[] = {
    {"thinking_level", Wish::kEffort}, {"thinkingLevel", Wish::kEffort},   {"thinking_budget", Wish::kBudget},
    {"thinkingBudget", Wish::kBudget}, {"include_thoughts", Wish::kShown}, {"includeThoughts", Wish::kShown},
};

struct Known {
  std::string path;
  Wish wish;
  std::string_view type;
};

std::string_view TypeOf(const Spelling& spelling) {
  if (!spelling.type.empty()) return spelling.type;
  switch (spelling.wish) {
    case Wish::kEffort:
      return "string|integer";
    case Wish::kBudget:
      return "integer";
    case Wish::kHistory:
    case Wish::kFormat:
      return "string";
    default:
      return "boolean";
  }
}

std::string_view Meaning(Wish wish) {
  switch (wish) {
    case Wish::kSwitch:
      return "reason before answering";
    case Wish::kOff:
      return "true: no reasoning";
    case Wish::kEffort:
      return "how much to reason; a number from 1 to 100 for V4.1";
    case Wish::kBudget:
      return "tokens of reasoning at most; 0: none, -1: no bound";
    case Wish::kDropped:
      return "false keeps the reasoning of earlier turns";
    case Wish::kKept:
      return "true keeps the reasoning of earlier turns";
    case Wish::kHistory:
      return "all or preserved keeps the reasoning of earlier turns";
    case Wish::kShown:
      return "false: the answer goes without its reasoning";
    case Wish::kHidden:
      return "true: the answer goes without its reasoning";
    case Wish::kFormat:
      return "hidden: the answer goes without its reasoning";
  }
  return {};
}

// All spellings, the one that wins first.
const std::vector<Known>& Spellings() {
  static const std::vector<Known> all = [] {
    std::vector<Known> list;
    const auto add = [&](std::string_view inside, std::span<const Spelling> spellings) {
      for (const Spelling& one : spellings) {
        list.push_back(
            {.path = inside.empty() ? std::string(one.path) : fmt::format("{}.{}", inside, one.path),
             .wish = one.wish,
             .type = TypeOf(one)});
      }
    };
    add({}, kFirst);
    for (const std::string_view arguments : kArguments) {
      add(arguments, kFirst);
      add(arguments, kThen);
    }
    add({}, kThen);
    for (const std::string_view object : kOfGoogle) add(object, kGoogle);
    // A budget may have each of its names in the objects of settings too.
    for (const std::span<const Spelling> spellings :
         {std::span<const Spelling>(kFirst), std::span<const Spelling>(kThen)}) {
      for (const Spelling& one : spellings) {
        if (one.wish != Wish::kBudget || one.path.find('.') != std::string_view::npos) continue;
        for (const std::string_view object : {"reasoning", "thinking"}) {
          add(object, {&one, 1});
          for (const std::string_view arguments : kArguments)
            add(fmt::format("{}.{}", arguments, object), {&one, 1});
        }
      }
    }
    return list;
  }();
  return all;
}

std::vector<ThinkingField> MakeFields() {
  std::vector<ThinkingField> fields;
  const auto add = [&](std::string_view path, std::string_view type, std::string_view says) {
    const size_t dot = path.rfind('.');
    const bool is_inside = dot != std::string_view::npos;
    const ThinkingField field = {.name = is_inside ? path.substr(dot + 1) : path,
                                 .inside = is_inside ? path.substr(0, dot) : std::string_view(),
                                 .type = type,
                                 .says = says};
    const bool known = std::ranges::any_of(fields, [&](const ThinkingField& other) {
      return other.name == field.name && other.inside == field.inside;
    });
    if (!known) fields.push_back(field);
  };
  for (const Known& one : Spellings()) add(one.path, one.type, Meaning(one.wish));
  for (const Known& one : Spellings()) {
    const std::string_view path = one.path;
    for (size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.', dot + 1))
      add(path.substr(0, dot), "object", "settings of the reasoning");
  }
  return fields;
}

// A member of the request by its dotted path; null when a key on the way is missing or null.
const JsonValue* FindPath(const JsonValue& request, std::string_view path) {
  const JsonValue* value = &request;
  while (!path.empty()) {
    const std::string_view key = path.substr(0, path.find('.'));
    path.remove_prefix(std::min(path.size(), key.size() + 1));
    value = value->Find(key);
    if (value == nullptr || value->is_null()) return nullptr;
  }
  return value;
}

// Objects of settings are objects: a text of one would say nothing without a word.
Status CheckObjects(const JsonValue& request) {
  for (const ThinkingField& field : ThinkingFields()) {
    if (field.type != "object") continue;
    const std::string path =
        field.inside.empty() ? std::string(field.name) : fmt::format("{}.{}", field.inside, field.name);
    const JsonValue* const value = FindPath(request, path);
    if (value == nullptr || value->is_object() || value->SaysNothing()) continue;
    return InvalidArgument(fmt::format("{}: got {}, wanted an object", path, value->kind_name()));
  }
  return {};
}

bool NamesOneOf(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string_view LastOf(std::string_view path) { return path.substr(path.rfind('.') + 1); }

// A word as a switch; none for other words.
std::optional<bool> SwitchOf(const std::string& text) {
  const std::string word = Lowercase(text);
  if (NamesOneOf(word, {"enabled", "adaptive", "auto", "on", "true", "thinking", "reasoning"})) return true;
  if (NamesOneOf(word, {"disabled", "off", "false", "none", "chat"})) return false;
  return std::nullopt;
}

// The level of an effort; empty: none. Nothing for what is no effort.
std::optional<std::string> FindEffort(const ChatProfile& profile, const JsonValue& value) {
  const bool is_effort = value.is_string() || value.kind() == JsonValue::Kind::kInteger;
  return is_effort ? profile.FindApiEffort(Lowercase(value.text())) : std::nullopt;
}

Status WantsBoolean(std::string_view path, const JsonValue& value) {
  return InvalidArgument(fmt::format("{}: got {}, wanted a boolean", path, value.kind_name()));
}

// None: the value says other things.
Result<std::optional<bool>> ReadSwitch(const ChatProfile& profile, const JsonValue& value,
                                       std::string_view path) {
  using Found = std::optional<bool>;
  if (value.is_bool()) return Found(value.boolean());
  const std::string_view name = LastOf(path);
  // Objects of settings, each of which is looked at.
  if (value.is_object() && NamesOneOf(name, {"thinking", "reasoning"})) return Found();
  if (value.is_string()) {
    if (const Found found = SwitchOf(value.text())) return found;
    if (FindEffort(profile, value)) return Found(true);
  }
  if (name == "type") {
    return Error(InvalidArgument(
        fmt::format("{}: got '{}', wanted enabled, adaptive or disabled", path, value.text())));
  }
  return Error(WantsBoolean(path, value));
}

// Calls `read` with each spelling of these wishes that is present, until one returns true.
template <class Read>
Status ForEach(const JsonValue& request, std::initializer_list<Wish> wishes, const Read& read) {
  for (const Known& one : Spellings()) {
    if (std::find(wishes.begin(), wishes.end(), one.wish) == wishes.end()) continue;
    const JsonValue* value = FindPath(request, one.path);
    if (value == nullptr) continue;
    DSV4_ASSIGN_OR_RETURN_STATUS(const bool done, read(one, *value));
    if (done) return {};
  }
  return {};
}

Status ReadMode(const ChatProfile& profile, const JsonValue& request, ThinkingSettings& settings) {
  if (const JsonValue* model = FindPath(request, "model")) {
    if (model->text() == "deepseek-chat") settings.mode = ThinkingMode::kChat;
    if (model->text() == "deepseek-reasoner") settings.mode = ThinkingMode::kThinking;
  }
  return ForEach(request, {Wish::kSwitch, Wish::kOff},
                 [&](const Known& one, const JsonValue& value) -> Result<bool> {
                   std::optional<bool> on;
                   if (one.wish == Wish::kSwitch) {
                     DSV4_ASSIGN_OR_RETURN(on, ReadSwitch(profile, value, one.path));
                   } else {
                     if (!value.is_bool()) return Error(WantsBoolean(one.path, value));
                     if (value.boolean()) on = false;  // Clients that ask for nothing send false.
                   }
                   if (on) settings.mode = *on ? ThinkingMode::kThinking : ThinkingMode::kChat;
                   return on.has_value();
                 });
}

// Sets the effort; "none", false and 0 turn thinking off.
Status ReadEffort(const ChatProfile& profile, const JsonValue& request, ThinkingSettings& settings) {
  return ForEach(request, {Wish::kEffort}, [&](const Known& one, const JsonValue& value) -> Result<bool> {
    if (const std::optional<std::string> effort = FindEffort(profile, value)) {
      settings.effort.reset();
      if (!effort->empty()) settings.effort = effort;
      return true;
    }
    // A switch, which has been read.
    if (NamesOneOf(LastOf(one.path), {"think", "thinking", "reasoning"})) return false;
    std::optional<bool> on;
    if (value.is_bool()) on = value.boolean();
    if (value.is_string()) on = SwitchOf(value.text());
    if (value.kind() == JsonValue::Kind::kInteger && value.text() == "0") on = false;
    if (on == false) settings.mode = ThinkingMode::kChat;
    if (on || value == JsonValue::String("default")) return true;
    return Error(InvalidArgument(
        fmt::format("{}: got {}, wanted one of {}", one.path, WriteJson(value), profile.ApiEffortNames())));
  });
}

std::optional<int64_t> IntegerOf(const JsonValue& value) {
  if (value.kind() == JsonValue::Kind::kDouble) {  // 1024.0
    const double number = value.number();
    constexpr double kMost = 1e15;
    if (std::abs(number) > kMost || number != std::floor(number)) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.kind() != JsonValue::Kind::kInteger) return std::nullopt;
  const std::string& digits = value.text();
  int64_t integer = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), integer);
  return error == std::errc() ? std::optional(integer) : std::nullopt;
}

Status ReadBudget(const JsonValue& request, ThinkingSettings& settings) {
  return ForEach(request, {Wish::kBudget}, [&](const Known& one, const JsonValue& value) -> Result<bool> {
    // Anthropic's 0 never came to mean "off".
    const bool zero_is_off =
        !one.path.ends_with("thinking.budget_tokens") && !one.path.ends_with("thinking.budgetTokens");
    const std::optional<int64_t> tokens = IntegerOf(value);
    if (!tokens || *tokens < (zero_is_off ? -1 : 0)) {
      return Error(InvalidArgument(fmt::format("{}: got {}, wanted an integer, {} for no bound", one.path,
                                               WriteJson(value), zero_is_off ? "-1" : "0")));
    }
    if (*tokens > 0) settings.max_reasoning_tokens = *tokens;
    if (*tokens == 0 && zero_is_off) settings.mode = ThinkingMode::kChat;
    return true;
  });
}

// Anthropic's way to keep all reasoning: an edit of the context that clears none.
bool KeepsByEdit(const JsonValue& request) {
  const JsonValue* const edits = FindPath(request, "context_management.edits");
  if (edits == nullptr) return false;
  return std::ranges::any_of(edits->items(), [](const JsonValue& edit) {
    const JsonValue* const type = edit.Find("type");
    const JsonValue* const keep = edit.Find("keep");
    return type != nullptr && type->text().starts_with("clear_thinking") && keep != nullptr &&
           *keep == JsonValue::String("all");
  });
}

Status ReadDropped(const JsonValue& request, ThinkingSettings& settings) {
  if (KeepsByEdit(request)) settings.drop_thinking = false;
  return ForEach(
      request, {Wish::kDropped, Wish::kKept, Wish::kHistory},
      [&](const Known& one, const JsonValue& value) -> Result<bool> {
        if (one.wish == Wish::kHistory) {
          const std::string word = Lowercase(value.text());
          if (value.SaysNothing()) return false;
          const bool drops = NamesOneOf(word, {"interleaved", "disabled", "none"});
          if (!value.is_string() || (!drops && word != "all" && word != "preserved")) {
            return Error(InvalidArgument(fmt::format(
                "{}: got {}, wanted all, preserved, interleaved or disabled", one.path, WriteJson(value))));
          }
          settings.drop_thinking = drops;
          return true;
        }
        if (!value.is_bool()) return Error(WantsBoolean(one.path, value));
        settings.drop_thinking = value.boolean() == (one.wish == Wish::kDropped);
        return true;
      });
}

Status ReadShown(const JsonValue& request, ThinkingSettings& settings) {
  return ForEach(
      request, {Wish::kShown, Wish::kHidden, Wish::kFormat},
      [&](const Known& one, const JsonValue& value) -> Result<bool> {
        if (one.wish == Wish::kFormat) {
          const std::string word = Lowercase(value.text());
          if (!value.is_string() || !NamesOneOf(word, {"", "auto", "parsed", "deepseek", "hidden"})) {
            return Error(InvalidArgument(fmt::format(
                "{}: got {}, wanted parsed, deepseek, auto or hidden: the reasoning is not written "
                "into the content",
                one.path, WriteJson(value))));
          }
          settings.shows_reasoning = word != "hidden";
          return true;
        }
        if (!value.is_bool()) return Error(WantsBoolean(one.path, value));
        settings.shows_reasoning = value.boolean() == (one.wish == Wish::kShown);
        return true;
      });
}

}  // namespace

Result<ThinkingSettings> ResolveThinking(const ChatProfile& profile, const JsonValue& request,
                                         const ThinkingSettings& defaults) {
  ThinkingSettings settings = defaults;
  DSV4_TRY(CheckObjects(request));
  DSV4_TRY(ReadMode(profile, request, settings));
  DSV4_TRY(ReadEffort(profile, request, settings));
  DSV4_TRY(ReadBudget(request, settings));
  DSV4_TRY(ReadDropped(request, settings));
  DSV4_TRY(ReadShown(request, settings));
  return settings;
}

std::span<const ThinkingField> ThinkingFields() {
  static const std::vector<ThinkingField> fields = MakeFields();
  return fields;
}

}  // namespace dsv4::chat
