"""Tool declarations, requests and DSML calls. Tool names are put together from verbs and nouns, arguments from words.

One name in five and one argument value in five (by hash) appear in the evaluation only.
"""

from __future__ import annotations

import json
import random
from typing import Any

from chat import Message
from facts import Country, fact_exchange
from lexicon import CITIES, COLOURS, DAYS, FOODS, OBJECTS, PEOPLE, PLACES, Lexicon, is_evaluation, split_words

_VERBS = split_words("get find search list create delete update check book cancel send open close start stop play show order "
          "track read fetch add remove count convert")
_NOUNS = split_words("weather ticket flight train hotel table song movie file note event alarm timer light door order parcel price "
          "stock recipe map route photo contact message email task report document invoice account room car bus menu "
          "book record")
_PARAMETERS: dict[str, tuple[str, str]] = {
    "city": ("string", "City name"), "name": ("string", "Name of a person"), "title": ("string", "Title"),
    "color": ("string", "Colour"), "day": ("string", "Day of the week"), "item": ("string", "Item"),
    "place": ("string", "Place"), "food": ("string", "Food"), "text": ("string", "Text"),
    "count": ("integer", "How many"), "limit": ("integer", "Maximum number"), "amount": ("number", "Amount"),
    "hours": ("integer", "Hours"), "urgent": ("boolean", "Is it urgent"), "loud": ("boolean", "With sound"),
    "tags": ("array", "List of tags"), "id": ("integer", "Number of the entry")}


def _value(rng: random.Random, parameter: str, lexicon: Lexicon, evaluation: bool) -> Any:
    pools = {"city": CITIES, "name": PEOPLE, "color": COLOURS, "day": DAYS, "item": OBJECTS, "place": PLACES,
             "food": FOODS}
    if parameter in pools:
        return rng.choice(pools[parameter])
    if parameter in ("title", "text"):
        words = [w for w in rng.sample(lexicon.words, 40) if is_evaluation(w) == evaluation]
        return " ".join(words[:rng.randint(1, 4)])
    if parameter == "amount":
        return rng.randint(1, 400) / 4
    if parameter == "tags":
        words = [w for w in rng.sample(lexicon.words, 40) if is_evaluation(w) == evaluation]
        return words[:rng.randint(1, 3)]
    if parameter in ("urgent", "loud"):
        return rng.random() < 0.5
    return rng.randint(1, 500 if parameter == "id" else 60)


def _tool(rng: random.Random, evaluation: bool, taken: set[str]) -> dict[str, Any]:
    while True:
        verb, noun = rng.choice(_VERBS), rng.choice(_NOUNS)
        name = f"{verb}_{noun}"
        if is_evaluation(name) == evaluation and name not in taken:
            break
    taken.add(name)
    names = rng.sample(sorted(_PARAMETERS), rng.choice((1, 1, 2, 2, 3)))
    properties: dict[str, Any] = {}
    for parameter in names:
        kind, description = _PARAMETERS[parameter]
        properties[parameter] = {"type": kind}
        if rng.random() < 0.5:
            properties[parameter]["description"] = description
        if kind == "array":
            properties[parameter]["items"] = {"type": "string"}
    description = rng.choice((f"{verb.capitalize()} the {noun}.", f"{verb.capitalize()} a {noun}.",
                              f"Use this to {verb} the {noun}."))
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if rng.random() < 0.8:
        parameters["required"] = names
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _say(parameter: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"{parameter} {'yes' if value else 'no'}"
    if isinstance(value, list):
        return f"{parameter} {' and '.join(value)}"
    if parameter in ("title", "text"):
        return f'{parameter} "{value}"'
    return f"{parameter} {value}"


def _request(rng: random.Random, tool: dict[str, Any], arguments: dict[str, Any]) -> str:
    verb, noun = tool["function"]["name"].split("_")
    spoken = ", ".join(_say(k, v) for k, v in arguments.items())
    if not arguments:
        return rng.choice((f"Please {verb} the {noun}.", f"Can you {verb} the {noun}?"))
    return rng.choice((f"Please {verb} the {noun} with {spoken}.", f"{verb.capitalize()} the {noun}: {spoken}.",
                       f"Can you {verb} the {noun} for {spoken}?", f"I want to {verb} a {noun}, {spoken}.",
                       f"{verb.capitalize()} a {noun} with {spoken}, please."))


def _call(tool: dict[str, Any], arguments: dict[str, Any], index: int) -> dict[str, Any]:
    return {"id": f"call_{index}", "type": "function",
            "function": {"name": tool["function"]["name"], "arguments": json.dumps(arguments, ensure_ascii=False)}}


def _arguments(rng: random.Random, tool: dict[str, Any], lexicon: Lexicon, evaluation: bool) -> dict[str, Any]:
    return {p: _value(rng, p, lexicon, evaluation) for p in tool["function"]["parameters"]["properties"]}


def tool_dialogue(rng: random.Random, countries: list[Country], lexicon: Lexicon, evaluation: bool = False
                  ) -> tuple[list[Message], list[dict[str, Any]], list[dict[str, Any]]]:
    """(messages, tools, expected calls of the first request). In evaluation only the first user turn is returned."""
    taken: set[str] = set()
    tools = [_tool(rng, evaluation, taken) for _ in range(rng.choice((1, 2, 2, 3)))]
    messages: list[Message] = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": rng.choice((
            "You are a helpful assistant.", "Use the tools when they help.", "You are an assistant with tools."))})
    first_calls: list[dict[str, Any]] = []
    counter = 0
    for turn in range(1 if evaluation else rng.choice((1, 2, 2, 3))):
        if not evaluation and rng.random() < 0.15:
            question, reasoning, answer = fact_exchange(rng, countries)
            messages.append({"role": "user", "content": question})
            messages.append({"role": "assistant", "reasoning_content": reasoning + " No tool is needed.", "content": answer})
            continue
        wanted = rng.sample(tools, 2) if len(tools) > 1 and rng.random() < 0.12 else [rng.choice(tools)]
        pairs = [(t, _arguments(rng, t, lexicon, evaluation)) for t in wanted]
        question = " ".join(_request(rng, t, a) for t, a in pairs)
        calls = []
        for tool, arguments in pairs:
            calls.append(_call(tool, arguments, counter))
            counter += 1
        if turn == 0:
            first_calls = calls
        messages.append({"role": "user", "content": question})
        if evaluation:
            break
        names = " and ".join(t["function"]["name"] for t in wanted)
        messages.append({"role": "assistant", "reasoning_content": f"The user wants something that {names} can do. I call it.",
                         "content": "", "tool_calls": calls})
        results, spoken = [], []
        for call in calls:
            kind = rng.choice(("status", "number", "word"))
            value = {"status": rng.choice(("done", "ok", "failed", "ready", "not found")), "number": rng.randint(1, 900),
                     "word": rng.choice(OBJECTS)}[kind]
            key = {"status": "status", "number": rng.choice(("result", "number", "total")), "word": "result"}[kind]
            results.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps({key: value})})
            spoken.append(f"{call['function']['name']} says: {key} is {value}.")
        messages.extend(results)
        messages.append({"role": "assistant", "reasoning_content": "I have the result and tell the user.",
                         "content": " ".join(spoken)})
    return messages, tools, first_calls
