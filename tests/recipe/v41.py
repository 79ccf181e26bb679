"""Random conversations of V4.1 for recipe_test.py, and how DeepSeek's own encoder is given them."""

import json

import deepseek_recipe as recipe
from conversations import TOOLS, Conversations

SCHEMAS = [{"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}, {}, {"type": "object", "$defs": {"日": {"k e y": [None, 1.5]}}}]
UPDATES = [{"name": "ns::late", "description": "Came later.", "parameters": {"type": "object", "properties": {}}}, {"name": "bare"}]
# Arguments that are no JSON object, or an object in an odd spelling.
ODD_ARGUMENTS = ["", "5", '"text"', "[1]", "null", '{"a": 1', '{"a": 1} x', "{}", " {\n} ", '{"a":[1,2],"b":{"c":null}}', '{"a": "\\u65e5", "b": 1.50, "a": 2}', '{"a": 1e-7, "b": 1e21}']


class ConversationsOfV41(Conversations):
    """Also system messages, reminders and updated tools in all places, schemas, unfinished answers."""

    def arguments(self):
        if self.maybe("numbers"):
            return '{"a": %s}' % self.random.choice(["-0", "12345678901234567890123", "1e400", "NaN"])
        return self.random.choice(ODD_ARGUMENTS) if self.random.random() < 0.3 else super().arguments()

    def text(self):
        return "" if self.random.random() < 0.05 else super().text()

    def system(self):
        message = {"role": "system", "content": self.text()}
        if self.random.random() < 0.2:
            message["tools"] = [{"type": "function", "function": tool} for tool in self.random.sample(TOOLS + UPDATES, self.random.randint(1, 2))]
        return message

    def others(self):
        """System messages, with reminders behind them."""
        messages = []
        for _ in range(self.random.choice([0, 0, 0, 1, 2])):
            messages.append(self.system())
            messages += [{"role": "latest_reminder", "content": self.text()} for _ in range(self.random.choice([0, 0, 1, 2 if self.maybe("reminders in a row") else 1]))]
        return messages

    def one(self):
        thinking = self.random.random() < 0.7
        tools = self.random.sample(TOOLS + UPDATES, self.random.randint(1, 3)) if self.random.random() < 0.5 else []
        messages = []
        for turn in range(self.random.randint(1, 5)):
            messages += self.others()
            if not messages and self.random.random() < 0.1:
                messages.append({"role": "latest_reminder", "content": self.text()})
            if turn > 0 and self.maybe("assistants in a row"):
                messages.append(self.assistant(thinking, []))
            question = {"role": "user", "content": self.text()}
            messages += [question, {"role": "user", "content": self.text()}][:self.random.choice([1, 1, 1, 2])]
            if self.maybe("a reminder behind a user turn"):
                messages.append({"role": "latest_reminder", "content": self.text()})
            answer = self.assistant(thinking, tools)
            while "tool_calls" in answer:
                messages.append(answer)
                results = [{"role": "tool", "content": self.text(), "tool_call_id": call["id"]} for call in answer["tool_calls"]]
                self.random.shuffle(results)
                if self.random.random() < 0.2:
                    results.insert(self.random.randint(0, len(results)), {"role": "user", "content": self.text()})
                messages += results
                answer = self.assistant(thinking, tools if self.random.random() < 0.3 else [])
            if self.random.random() < 0.2:
                answer.pop("reasoning_content", None)
            messages.append(answer)
        end = self.random.random()
        if self.maybe("a finished assistant last"):
            pass
        elif end < 0.15 and "tool_calls" not in messages[-1]:
            messages[-1]["prefix"] = True
            if self.random.random() < 0.5:
                messages[-1]["content"] = ""
        elif end < 0.3:
            messages.append(self.system())
        else:
            messages.append({"role": "user", "content": self.text()})
        schema = self.random.choice(SCHEMAS) if self.random.random() < 0.2 else None
        return {"messages": messages, "tools": tools, "thinking": thinking, "schema": schema,
                "effort": self.random.choice(["low", "high", "xhigh", "max", None])}

    def assistant(self, thinking, tools):
        message = super().assistant(thinking, tools)
        ids = [f"call_{self.random.randrange(10**6):06}" for _ in message.get("tool_calls", [])]
        for call, name in zip(message.get("tool_calls", []), ids, strict=True):
            call["id"] = name  # In no order.
        return message


# Differences by design, and why.
REASONS = {
    "numbers": "all digits of large integers, -0 as 0 and 1e400 as Infinity, as the encoder beside the weights has them",
    "assistants in a row": "the encoder beside the weights writes no opener; `serve` does",
    "a finished assistant last": "the encoder beside the weights ends there; `serve` begins a further answer",
    "reminders in a row": "the recipe leaves all out but the first; the encoder beside the weights of V4 has none such rule",
    "a reminder behind a user turn": "the encoder beside the weights writes the opener in front of it; `serve` behind it",
}


def definitions(tools):
    return [recipe.ToolDefinition(**tool) for tool in tools]


def message_of(message):
    role, content = message["role"], message["content"]
    if role == "system":
        return recipe.SystemMessage(content, tools=definitions(tool["function"] for tool in message["tools"]) if "tools" in message else None)
    if role == "latest_reminder":
        return recipe.LatestReminderMessage(content)
    if role == "user":
        return recipe.UserMessage(content)
    if role == "tool":
        return recipe.ToolMessage(content, message["tool_call_id"])
    calls = [recipe.ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]
    return recipe.AssistantMessage(content, message.get("reasoning_content"), calls or None, prefix=message.get("prefix", False))


def render(conversation):
    options = {} if conversation["schema"] is None else {"response_schema": conversation["schema"]}
    return recipe.DeepseekV41Encoding().render_conversation(recipe.Conversation(
        [message_of(message) for message in conversation["messages"]], thinking_mode=conversation["thinking"], tools=definitions(conversation["tools"]),
        reasoning_effort=conversation["effort"], **options)).prompt


def case_of(name, conversation):
    messages = conversation["messages"]
    if conversation["schema"] is not None:
        first = messages[0] if messages[0]["role"] == "system" else None
        messages = [{**(first or {"role": "system", "content": ""}), "response_format": conversation["schema"]}, *(messages[1:] if first else messages)]
    tools = [{"type": "function", "function": tool} for tool in conversation["tools"]]
    return {"name": name, "messages": messages, "tools": tools or None,
            "options": {"thinking_mode": "thinking" if conversation["thinking"] else "chat", "drop_thinking": True,
                        "reasoning_effort": conversation["effort"], "add_default_bos_token": True, "revision": "v4.1"}}


def fixture_cases(seed, count):
    """Short cases with the answer of DeepSeek's encoder, as tests/fixtures/v41-encoding-cases.json has them. Each has a part that those
    handed in lack: updated tools, tools without a description, an empty schema or an unfinished reasoning."""
    source = ConversationsOfV41(seed)
    cases = []
    for one in (source.one() for _ in range(40 * count)):
        kinds = (any("tools" in message for message in one["messages"]), any(tool["name"] == "bare" for tool in one["tools"]), one["schema"] == {},
                 bool(one["messages"][-1].get("prefix")))
        if any(kinds):
            cases.append((kinds, {**case_of("", one), "rendered": render(one)}))
    cases.sort(key=lambda case: len(case[1]["rendered"]))
    chosen = [case for which in range(4) for case in [case for kinds, case in cases if kinds[which]][:count // 4]]
    return [{**case, "name": f"recipe_{i:03}"} for i, case in enumerate(chosen)]


if __name__ == "__main__":
    print(",\n".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in fixture_cases(41, 24)))
