// The endpoints below /v1/responses: answers, compactions, counts, and what is stored.
#include <fmt/format.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "server/api/list_page.h"
#include "server/service.h"
#include "server/service_parts.h"

namespace dsv4::server {

namespace {

// Input of the response, each item with an id of its own. One that is none, or stands before, gives way to one made of the response's.
std::vector<chat::JsonValue> InputItems(const StoredResponse& response, std::string_view id) {
  std::vector<chat::JsonValue> items = response.input.items();
  std::set<std::string, std::less<>> seen;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is_object()) continue;
    const chat::JsonValue* const own = items[i].Find("id");
    const bool is_own = own != nullptr && own->is_string() && !own->text().empty();
    if (is_own && seen.insert(own->text()).second) continue;
    auto& members = items[i].mutable_members();
    std::erase_if(members, [](const chat::JsonValue::Member& member) { return member.first == "id"; });
    members.emplace_back("id", chat::JsonValue::String(ItemId("in_", id, i)));
  }
  return items;
}

Result<std::unique_ptr<Reply>> InputItemsPage(std::vector<chat::JsonValue> items, std::string_view query) {
  std::vector<std::string> ids;
  for (const chat::JsonValue& item : items) {
    const chat::JsonValue* id = item.is_object() ? item.Find("id") : nullptr;
    ids.push_back(id != nullptr && id->is_string() ? id->text() : std::string());
  }
  DSV4_ASSIGN_OR_RETURN(const ListPage page, PageOf(query, ids, kItemLimits));
  std::vector<chat::JsonValue> data;
  for (const size_t i : page.indices) data.push_back(std::move(items[i]));
  const auto name = [&](bool is_last) {
    if (page.indices.empty()) return std::string("null");
    return JsonText(ids[is_last ? page.indices.back() : page.indices.front()]);
  };
  return MakeReply(
      {}, fmt::format(R"({{"object": "list", "data": {}, "first_id": {}, "last_id": {}, "has_more": {}}})",
                      chat::WriteJson(chat::JsonValue::Array(std::move(data))), name(false), name(true),
                      page.has_more));
}

// The items of stored responses, by their ids. Each response is read once, however many of its items are asked for.
FindItem ItemsOf(ResponseStore* store, uint64_t owner) {
  const auto known = std::make_shared<std::map<std::string, std::vector<chat::JsonValue>>>();
  return [store, owner, known](const std::string& id) -> Result<chat::JsonValue> {
    const auto [place, is_new] = known->try_emplace(ResponseOfItem(id));
    if (is_new && !place->first.empty()) {
      if (const Result<StoredResponse> response = store->Get(owner, place->first)) {
        place->second = InputItems(*response, place->first);
        if (const chat::JsonValue* output = response->reply.Find("output"))
          place->second.insert(place->second.end(), output->items().begin(), output->items().end());
      }
    }
    for (const chat::JsonValue& item : place->second) {
      if (const chat::JsonValue* name = item.Find("id"); name != nullptr && name->text() == id) return item;
    }
    return Error(NotFound(fmt::format("item '{}' is not stored here (any more)", id)));
  };
}

}  // namespace

Result<ResponsesRequest> Service::ReadStored(HttpRequest& request, const Caller& caller, bool compacts) {
  DSV4_ASSIGN_OR_RETURN(chat::JsonValue body, ReadBody(request, model_));
  ResponseStore* const store = options_.responses;
  const bool stores = store != nullptr && store->enabled();
  std::vector<chat::JsonValue> history;
  if (const std::string previous = PreviousResponse(body); !previous.empty()) {
    if (!stores) {
      return Error(
          InvalidArgument("previous_response_id: nothing is stored here (--responses-mib 0); send the "
                          "conversation as input"));
    }
    auto found = store->Conversation(caller.store_owner, previous);
    if (!found) return Error(found.error().WithContext("previous_response_id"));
    history = std::move(*found);
  }
  const FindItem find = stores ? ItemsOf(store, caller.store_owner) : FindItem();
  return ReadResponses(model_, std::move(body), std::move(history), find, compacts);
}

Result<std::unique_ptr<Reply>> Service::RunResponses(HttpRequest& request, const Caller& caller,
                                                     bool compacts) {
  DSV4_ASSIGN_OR_RETURN(ResponsesRequest responses, ReadStored(request, caller, compacts));
  ResponseStore* const store = options_.responses;
  std::function<void(const std::string&, const std::string&)> keep;
  if (store != nullptr && store->enabled() && responses.store && !compacts) {
    keep = [store, owner = caller.store_owner, previous = responses.previous,
            input = std::exchange(responses.own_input, {})](const std::string& id, const std::string& text) {
      if (Result<chat::JsonValue> reply = chat::ReadJson(text, "reply"))
        store->Put(owner, id, {.previous = previous, .input = input, .reply = std::move(*reply)});
    };
  }
  if (!compacts) responses.own_input = {};  // The call has copies.
  std::unique_ptr<AnswerWriter> writer =
      MakeResponsesWriter(model_, responses, call_memory_, std::move(keep));
  return StartChat(std::move(responses.call), std::move(writer), caller, request);
}

Result<std::unique_ptr<Reply>> Service::Responses(HttpRequest& request, const Caller& caller) {
  return RunResponses(request, caller, /*compacts=*/false);
}

Result<std::unique_ptr<Reply>> Service::Compact(HttpRequest& request, const Caller& caller) {
  return RunResponses(request, caller, /*compacts=*/true);
}

Result<std::unique_ptr<Reply>> Service::InputTokens(HttpRequest& request, const Caller& caller) {
  DSV4_ASSIGN_OR_RETURN(ResponsesRequest responses, ReadStored(request, caller, /*compacts=*/false));
  responses.own_input = {};  // Nothing is stored.
  const std::vector<std::string> unknown = std::move(responses.call.sampling.unknown_fields);
  DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                        ChatPrompt(model_, call_memory_, std::move(responses.call)));
  return Tell(MakeReply({}, JsonText({{"object", "response.input_tokens"}, {"input_tokens", ids.size()}})),
              request, unknown);
}

Result<std::unique_ptr<Reply>> Service::StoredResponseOf(HttpRequest& request, const Caller& caller) {
  constexpr std::string_view kPath = "/v1/responses/";
  constexpr std::string_view kItems = "/input_items";
  std::string id = request.path.substr(kPath.size());
  const bool items = id.ends_with(kItems);
  if (items) id.resize(id.size() - kItems.size());
  if (options_.responses == nullptr)
    return Error(NotFound(fmt::format("response '{}' is not stored here", id)));
  if (request.method == "DELETE") {
    DSV4_TRY(options_.responses->Erase(caller.store_owner, id));
    return MakeReply({}, JsonText({{"id", id}, {"object", "response"}, {"deleted", true}}));
  }
  DSV4_ASSIGN_OR_RETURN(const StoredResponse stored, options_.responses->Get(caller.store_owner, id));
  if (items) return InputItemsPage(InputItems(stored, id), request.query);
  if (const std::string stream = QueryValue(request.query, "stream");
      !stream.empty() && stream != "false" && stream != "False" && stream != "0")
    return Error(InvalidArgument("stream: a stored response is not streamed again, it comes whole"));
  return MakeReply({}, chat::WriteJson(stored.reply));
}

}  // namespace dsv4::server
