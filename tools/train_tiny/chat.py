"""The chat grammar of V4 and V4.1 in Python: renders messages to prompt text and parses completions strictly.

Written from the chat-encoding specification (sections 2 and 3). The C++ engine has its own renderer; this one
exists so that training data and evaluation prompts do not depend on the engine they are meant to test.
`python3 chat.py --cases tests/fixtures/encoding-cases.json` (and v41-encoding-cases.json) checks it against the official encoders' outputs.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from typing import Any

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
THINK = "<think>"
END_THINK = "</think>"
DSML = "｜DSML｜"
REMINDER = "<｜latest_reminder｜>"
SYSTEM = "<｜System｜>"
V41 = "v4.1"
CALLS_OPEN = f"<{DSML}tool_calls>"
CALLS_CLOSE = f"</{DSML}tool_calls>"

_TASK_TOKENS = {name: f"<｜{name}｜>" for name in
                ("action", "query", "authority", "domain", "title", "read_url")}

_EFFORT_A = """Reasoning Effort: Absolute maximum with no shortcuts permitted.
You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, \
rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.
Explicitly write out your entire deliberation process, documenting every intermediate step, considered alternative, \
and rejected hypothesis to ensure absolutely no assumption is left unchecked.

"""
_EFFORT_B = """Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.
You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the \
problem into its most fundamental components, trace every causal chain to its root, and resolve the underlying cause \
rather than any surface symptom.
Do not stop reasoning until you have independently verified the solution from multiple angles and are certain that no \
assumption remains unchecked and no error remains undiscovered.

"""
_EFFORT = {
    "v4": {None: "", "high": "", "max": _EFFORT_A},
    "v4-0731": {None: "", "low": "", "high": _EFFORT_A, "max": _EFFORT_B},
    V41: {effort: f"Reasoning Effort: {number} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
          for effort, number in {None: 75, "low": 50, "high": 75, "xhigh": 75, "max": 100, **{n: n for n in range(1, 101)}}.items()},
}

_TOOLS_HEAD = f"""## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a \
"{CALLS_OPEN}" block like the following:

{CALLS_OPEN}
<{DSML}invoke name="$TOOL_NAME">
<{DSML}parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{DSML}parameter>
...
</{DSML}invoke>
<{DSML}invoke name="$TOOL_NAME2">
...
</{DSML}invoke>
{CALLS_CLOSE}

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, \
objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by {THINK}), you MUST output your complete reasoning inside \
{THINK}...{END_THINK} BEFORE any tool calls or final response.

Otherwise, output directly after {END_THINK} with tool calls or final response.

### Available Tool Schemas

"""
_TOOLS_TAIL = """

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""
_FORMAT_HEAD = "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"

Message = dict[str, Any]


class EncodingError(ValueError):
    """The messages cannot be rendered, or the completion cannot be parsed."""


def to_json(value: Any) -> str:
    """JSON as the reference writes it."""
    return json.dumps(value, ensure_ascii=False)


def _merge(messages: list[Message]) -> list[Message]:
    merged: list[Message] = []
    for message in messages:
        role = message.get("role")
        last = merged[-1] if merged else None
        open_user = last is not None and last.get("role") == "user" and "content_blocks" in last
        if role == "tool":
            block = {"type": "tool_result", "tool_use_id": message.get("tool_call_id", ""),
                     "content": message.get("content", "")}
            if open_user:
                last["content_blocks"].append(block)
            else:
                merged.append({"role": "user", "content_blocks": [block]})
        elif role == "user":
            if message.get("content_blocks") is not None:
                blocks = list(message["content_blocks"])
            else:
                blocks = [{"type": "text", "text": message.get("content", "")}]
            if open_user and last.get("task") is None:
                last["content_blocks"].extend(blocks)
            else:
                new = {k: v for k, v in message.items() if k not in ("content", "content_blocks")}
                new["content_blocks"] = blocks
                merged.append(new)
        else:
            merged.append(dict(message))
    return merged


def _sort_tool_results(messages: list[Message]) -> None:
    order: dict[str, int] = {}
    for message in messages:
        if message.get("role") == "assistant" and message.get("tool_calls"):
            order = {}
            for index, call in enumerate(message["tool_calls"]):
                call_id = call.get("id") or call.get("function", {}).get("id")
                if call_id:
                    order[call_id] = index
        elif message.get("role") == "user" and "content_blocks" in message:
            blocks = message["content_blocks"]
            slots = [i for i, b in enumerate(blocks) if b.get("type") == "tool_result"]
            if len(slots) >= 2 and order:
                ranked = sorted((blocks[i] for i in slots), key=lambda b: order.get(b.get("tool_use_id", ""), 0))
                for slot, block in zip(slots, ranked):
                    blocks[slot] = block


def _block_text(block: dict[str, Any]) -> str:
    kind = block.get("type")
    if kind == "text":
        return block.get("text") or ""
    if kind == "tool_result":
        content = block.get("content")
        if isinstance(content, list):
            content = "\n\n".join(p.get("text", "") if p.get("type") == "text" else f"[Unsupported {p.get('type')}]"
                                  for p in content)
        return f"<tool_result>{content or ''}</tool_result>"
    return f"[Unsupported {kind}]"


def spaced(text: str, revision: str) -> str:
    """A text of ours with V4's tags, in the tags of the revision."""
    return re.sub(rf"(<|</){DSML}(?:tool_)?(calls|invoke|parameter)", rf"\1{DSML} \2", text) if revision == V41 else text


def _tool_lines(tools: list[dict[str, Any]], revision: str) -> str:
    functions = [tool["function"] for tool in tools]
    if revision == V41:
        functions = [{"name": f["name"], "description": f.get("description") or "", "parameters": f.get("parameters")} for f in functions]
    return "\n".join(map(to_json, functions))


def tools_block(tools: list[dict[str, Any]], revision: str = "v4") -> str:
    """The system text that declares tools (OpenAI form: `{"type": "function", "function": {...}}`)."""
    return spaced(_TOOLS_HEAD, revision) + _tool_lines(tools, revision) + _TOOLS_TAIL


def calls_block(calls: list[dict[str, Any]], revision: str = "v4") -> str:
    """The DSML block of an assistant message's `tool_calls`."""
    def tag(text: str) -> str:
        return spaced(text, revision)

    out = [tag(CALLS_OPEN), "\n"]
    for call in calls:
        function = call["function"]
        out.append(tag(f"<{DSML}invoke") + f' name="{function["name"]}">\n')
        try:
            arguments = json.loads(function["arguments"])
            to_json(arguments).encode()  # A lone surrogate is no text.
        except (TypeError, ValueError):
            arguments = {"arguments": function["arguments"]}
        if not isinstance(arguments, dict) and revision == V41:
            arguments = {"arguments": function["arguments"]}
        if not isinstance(arguments, dict):
            raise EncodingError(f"arguments of {function['name']}: wanted a JSON object, got {arguments!r}")
        lines = []
        for key, value in arguments.items():
            is_string = isinstance(value, str)
            text = value if is_string else to_json(value)
            flag = "true" if is_string else "false"
            lines.append(tag(f"<{DSML}parameter") + f' name="{key}" string="{flag}">{text}' + tag(f"</{DSML}parameter>"))
        out.append("\n".join(lines) + "\n")
        out.append(tag(f"</{DSML}invoke>") + "\n")
    out.append(tag(CALLS_CLOSE))
    return "".join(out)


def _tools_of(message: Message, revision: str) -> list[dict[str, Any]] | None:
    """Those that are declared; in V4.1 a system message's own are an update."""
    updates = revision == V41 and message.get("role") == "system"
    return message.get("request_tools") or (None if updates else message.get("tools"))


def _extras(message: Message, revision: str) -> str:
    text = ""
    if tools := _tools_of(message, revision):
        text += "\n\n" + tools_block(tools, revision)
    schema = message.get("response_format")
    if schema or (revision == V41 and schema is not None):
        text += "\n\n" + _FORMAT_HEAD + to_json(schema)
    if message.get("tools") and tools is not message["tools"] and revision == V41:
        text += "\n\n### Updated Tool Schemas\n\n" + _tool_lines(message["tools"], revision)
    return text


def attach_tools(messages: list[Message], tools: list[dict[str, Any]] | None) -> list[Message]:
    """Puts request-level tools where the grammar wants them: on the first system or developer message."""
    if not tools:
        return messages
    if messages and messages[0].get("role") in ("system", "developer"):
        return [{**messages[0], "request_tools": tools}, *messages[1:]]
    return [{"role": "system", "content": "", "request_tools": tools}, *messages]


def render(messages: list[Message], mode: str = "thinking", *, drop_thinking: bool = True, effort: str | None = None,
           add_bos: bool = True, context: list[Message] | None = None, revision: str = "v4") -> str:
    """Messages to prompt text. `context` messages take part in the bookkeeping but write nothing."""
    if mode not in ("thinking", "chat"):
        raise EncodingError(f"mode: wanted thinking or chat, got {mode!r}")
    if effort not in _EFFORT[revision]:
        raise EncodingError(f"effort {effort!r} does not exist in revision {revision}")
    context_merged = _merge(context or [])
    new_merged = _merge(messages)
    full = context_merged + new_merged
    _sort_tool_results(full)
    first_new = len(context_merged)

    def last_user_of(items: list[Message]) -> int:
        return max((i for i, m in enumerate(items) if m.get("role") in _questions(revision)), default=-1)

    drop = drop_thinking and not any(_tools_of(m, revision) for m in full)
    if mode == "thinking" and drop:
        last_user = last_user_of(full)
        kept: list[Message] = []
        kept_context = 0
        for i, message in enumerate(full):
            if i < last_user:
                if message.get("role") not in ("user", "system", "latest_reminder", "assistant"):
                    continue
                if message.get("role") == "assistant":
                    message = {k: v for k, v in message.items() if k != "reasoning_content"}
            kept.append(message)
            kept_context += i < first_new
        full, first_new = kept, kept_context
    last_user = last_user_of(full)

    out = [BOS] if add_bos and not context else []
    for i in range(first_new, len(full)):
        out.append(_render_one(full, i, mode, drop, last_user, _EFFORT[revision][effort], revision))
        out.append(_transition(full, i, mode, drop, last_user, revision))
    return "".join(out)


def _questions(revision: str) -> tuple[str, ...]:
    """Roles of turns that ask for an answer."""
    return ("user", "developer", "system") if revision == V41 else ("user", "developer")


def _render_one(full: list[Message], i: int, mode: str, drop: bool, last_user: int, prefix: str, revision: str) -> str:
    message = full[i]
    role = message.get("role")
    head = prefix if i == 0 and mode == "thinking" else ""
    if revision == V41 and (head or role == "system"):
        head = SYSTEM + head
    content = message.get("content") or ""
    if role == "system":
        return head + content + _extras(message, revision)
    if role == "developer":
        if not content:
            raise EncodingError("developer message without content")
        return head + USER + content + _extras(message, revision)
    if role == "user":
        return head + USER + "\n\n".join(_block_text(b) for b in message["content_blocks"])
    if role == "latest_reminder":
        return head + REMINDER + content
    if role == "assistant":
        reasoning = ""
        unfinished = message.get("wo_eos") or message.get("prefix")
        after_task = i > 0 and full[i - 1].get("task") is not None
        if mode == "thinking" and not after_task and (not drop or i > last_user):
            reasoning = message.get("reasoning_content") or ""
            goes_on = revision == V41 and unfinished and not content and not message.get("tool_calls")
            reasoning += "" if goes_on else END_THINK
        calls = "\n\n" + calls_block(message["tool_calls"], revision) if message.get("tool_calls") else ""
        return head + reasoning + content + calls + ("" if unfinished else EOS)
    raise EncodingError(f"unknown role {role!r}")


def _opens_behind_reminders(full: list[Message], i: int, revision: str) -> bool:
    while i > 0 and full[i].get("role") == "latest_reminder":
        i -= 1
    return revision == V41 and full[i].get("role") not in ("user", "developer")


def _transition(full: list[Message], i: int, mode: str, drop: bool, last_user: int, revision: str) -> str:
    behind = _opens_behind_reminders(full, i, revision)
    if i + 1 < len(full) and full[i + 1].get("role") not in ("assistant", *(() if behind else ("latest_reminder",))):
        return ""
    message = full[i]
    task = message.get("task")
    if task is not None:
        if task not in _TASK_TOKENS:
            raise EncodingError(f"unknown task {task!r}")
        if task == "action":
            return ASSISTANT + (THINK if mode == "thinking" else END_THINK) + _TASK_TOKENS[task]
        return _TASK_TOKENS[task]
    if message.get("role") in _questions(revision) or (behind and message.get("role") == "latest_reminder"):
        return ASSISTANT + (THINK if mode == "thinking" and (not drop or i >= last_user) else END_THINK)
    return ""


_INVOKE = rf'<{DSML}invoke\s+name="([^"]*)">\n'
_PARAM = rf'<{DSML}parameter name="([^"]*)" string="(true|false)">(.*?)</{DSML}parameter>\n'


def parse(completion: str, mode: str, revision: str = "v4") -> Message:
    """Strict parse of a completion that ends in EOS. Raises EncodingError on anything the grammar does not allow."""
    calls_open, calls_close, invoke_close = (spaced(tag, revision) for tag in (CALLS_OPEN, CALLS_CLOSE, f"</{DSML}invoke>\n"))
    invoke, parameter = (re.compile(spaced(pattern, revision), re.S) for pattern in (_INVOKE, _PARAM))
    rest = completion
    reasoning = ""
    opener = "\n\n" + calls_open
    if mode == "thinking":
        reasoning, found, rest = rest.partition(END_THINK)
        if not found or opener in reasoning:
            raise EncodingError("reasoning is not closed")
    stops = [p for p in (rest.find(EOS), rest.find(opener)) if p >= 0]
    if not stops:
        raise EncodingError("neither end of sentence nor tool calls found")
    content, rest = rest[:min(stops)], rest[min(stops):]
    calls = []
    if rest.startswith(opener):
        rest = rest[len(opener):]
        if not rest.startswith("\n"):
            raise EncodingError("line feed missing after tool_calls")
        rest = rest[1:]
        while not rest.startswith(calls_close):
            match = invoke.match(rest)
            if not match:
                raise EncodingError(f"invoke expected at {rest[:40]!r}")
            rest = rest[match.end():]
            arguments: list[tuple[str, str]] = []
            close = invoke_close
            if rest.startswith("\n" + close):
                rest = rest[1:]
            while not rest.startswith(close):
                param = parameter.match(rest)
                if not param:
                    raise EncodingError(f"parameter expected at {rest[:40]!r}")
                key, flag, value = param.groups()
                if any(key == k for k, _ in arguments):
                    raise EncodingError(f"duplicate parameter {key!r}")
                arguments.append((key, to_json(value) if flag == "true" else value))
                rest = rest[param.end():]
            rest = rest[len(close):]
            body = ", ".join(f"{to_json(k)}: {v}" for k, v in arguments)
            calls.append({"type": "function", "function": {"name": match.group(1), "arguments": "{" + body + "}"}})
        rest = rest[len(calls_close):]
    if rest not in ("", EOS):
        raise EncodingError(f"text after the answer: {rest[:40]!r}")
    for marker in (BOS, EOS, THINK, END_THINK, DSML):
        if marker in content or marker in reasoning:
            raise EncodingError(f"{marker} inside the answer")
    return {"role": "assistant", "content": content, "reasoning_content": reasoning, "tool_calls": calls}


def _check(encoding_cases: str, parsing_cases: str | None) -> int:
    failures = 0
    with open(encoding_cases, encoding="utf-8") as file:
        cases = json.load(file)
    for case in cases:
        options = case["options"]
        try:
            got = render(attach_tools(case["messages"], case.get("tools")), options["thinking_mode"],
                         drop_thinking=options["drop_thinking"], effort=options["reasoning_effort"],
                         add_bos=options["add_default_bos_token"], context=options.get("context"),
                         revision=options["revision"])
        except (EncodingError, TypeError, AttributeError) as error:
            got = f"error: {error}"
            if case.get("error"):
                continue
        if got != case.get("rendered") and not case["name"].startswith("err_"):
            failures += 1
            print(f"render {case['name']}:\n  got    {got!r}\n  wanted {case.get('rendered')!r}")
    total = len(cases)
    if parsing_cases:
        with open(parsing_cases, encoding="utf-8") as file:
            cases = json.load(file)
        for case in cases:
            try:
                got = parse(case["completion"], case["mode"])
                wrong = case.get("error") or any(got[k] != case["expected"][k] for k in
                                                 ("content", "reasoning_content")) or \
                    [c["function"] for c in got["tool_calls"]] != \
                    [c["function"] for c in case["expected"].get("tool_calls", [])]
            except EncodingError as error:
                got, wrong = f"error: {error}", not case.get("error")
            if wrong:
                failures += 1
                print(f"parse {case['name']}:\n  got    {got!r}\n  wanted {case.get('expected')!r}")
        total += len(cases)
    print(f"{total - failures} of {total} cases pass")
    return 1 if failures else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", required=True, help="encoding-cases.json")
    parser.add_argument("--parsing-cases", help="parsing-cases.json")
    arguments = parser.parse_args()
    sys.exit(_check(arguments.cases, arguments.parsing_cases))
