"""Random conversations and completions for recipe_test.py. Everything follows from the seed."""

import json
import random

USER, ASSISTANT, EOS = "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"
MARK = "｜DSML｜"
TEXTS = ["hi", "What is it?", "two\nlines", "  blanks around  ", "tab\there", "é́ 日本語", "😀 emoji", "\r\n", "a\u2028b", "\u0000z",
         "quote \" and \\ back", USER, ASSISTANT + "</think>", "<think>", "</think", MARK, "<｜DSML｜tool_calls>", EOS, "<|EOT|>", "{\"a\": 1}",
         "a very long text " * 20, "`code`", "</s>", "<｜latest_reminder｜>", "&lt;b&gt;", "\u001f", "x" * 300]
VALUES = [1, 0, -5, 2147483648, True, False, None, "text", "日本", "", "a\"b\\c\n", [], [1, "x", None], {}, {"k e y": [""]}, {"z": {"y": [1.5]}}, 0.25, 123.5]
TOOLS = [{"name": "get_weather", "description": "The weather.", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
         {"name": "x1", "description": "", "parameters": {"type": "object", "properties": {}}},
         {"name": "search-web", "description": "Finds “things”.\nWell.", "parameters": {"type": "object", "properties": {"q": {"type": "string"}, "n": {"type": "integer"}}}}]


class Conversations:
    """Only what both render alike: what differs by design comes in through `change`, a difference's name."""

    def __init__(self, seed, change=None):
        self.random, self.change, self.num_ids = random.Random(seed), change, 0

    def text(self):
        text = "".join(self.random.choice(TEXTS) for _ in range(self.random.randint(1, 3)))
        return text or "t"

    def maybe(self, change, chance=0.5):
        return self.change == change and self.random.random() < chance

    def arguments(self):
        names = self.random.sample(["a", "A", "k_e", "x.y", "日", "input", "_"], self.random.randint(1, 3))
        values = {name: self.random.choice(VALUES) for name in names}
        if self.maybe("empty arguments"):
            return "{}"
        if self.maybe("numbers"):
            return '{"a": %s}' % self.random.choice(["1e-7", "1e-5", "-0", "12345678901234567890123", "1e400", "NaN"])
        if self.maybe("arguments that are no object"):
            return self.random.choice(["5", "\"text\"", "[1]", "null"])
        return json.dumps(values, ensure_ascii=self.random.random() < 0.3)

    def assistant(self, thinking, tools):
        message = {"role": "assistant", "content": self.text()}
        if thinking and not self.maybe("no reasoning"):
            message["reasoning_content"] = self.text()
        if tools and self.random.random() < 0.5:
            calls = []
            for _ in range(self.random.randint(1, 3)):
                self.num_ids += 1
                name = f"call_{self.num_ids:06}"
                if self.maybe("call ids in another order"):
                    name = f"call_{999999 - self.num_ids:06}"
                calls.append({"id": name, "type": "function", "function": {"name": self.random.choice(tools)["name"], "arguments": self.arguments()}})
            message["tool_calls"] = calls
        return message

    def one(self):
        """{"messages", "tools", "thinking", "effort"}"""
        thinking = self.random.random() < 0.7
        tools = self.random.sample(TOOLS, self.random.randint(1, 3)) if self.random.random() < 0.5 else []
        messages = []
        if self.random.random() < 0.5:
            messages.append({"role": "system", "content": self.text()})
            if self.maybe("two system messages in front"):
                messages.append({"role": "system", "content": self.text()})
        for turn in range(self.random.randint(1, 5)):
            if turn > 0 and self.maybe("assistants in a row"):
                messages.append(self.assistant(thinking, []))
            messages.append({"role": "user", "content": self.text()})
            if self.maybe("empty user text beside another"):
                messages.append({"role": "user", "content": ""})
            answer = self.assistant(thinking, tools)
            while "tool_calls" in answer:
                messages.append(answer)
                results = [{"role": "tool", "content": self.text(), "tool_call_id": call["id"]} for call in answer["tool_calls"]]
                self.random.shuffle(results)
                messages += results
                answer = self.assistant(thinking, tools if self.random.random() < 0.3 else [])
            messages.append(answer)
        if not self.maybe("a finished assistant last"):
            messages.append({"role": "user", "content": self.text()})
        effort = self.random.choice(["low", "high", "max"]) if thinking else None
        return {"messages": messages, "tools": tools, "thinking": thinking, "effort": effort}


# Differences by design, and why. Each is looked for in conversations that have it.
REASONS = {
    "empty user text beside another": "the encoder beside the weights joins empty texts too",
    "empty arguments": "the encoder beside the weights writes an empty line",
    "call ids in another order": "calls stay in the order in which the model made them",
    "numbers": "small floats as Python writes them; all digits of large integers; -0 and 1e400 as the encoder beside the weights has them",
    "arguments that are no object": "an error of the encoder beside the weights; `serve` makes them the text parameter `arguments`, as the recipe does",
    "no reasoning": "an empty reasoning, as the recipe's own conversion fills in",
    "two system messages in front": "the encoder joins them bare; `serve` with a blank line, as the recipe does",
    "assistants in a row": "the encoder beside the weights writes no opener; `serve` does",
    "a finished assistant last": "the encoder beside the weights ends there; `serve` begins a further answer",
}


def parameter(name, value, flag=None, mark=MARK, attributes=None):
    text = isinstance(value, str)
    flag = ("true" if text else "false") if flag is None else flag
    head = attributes or f'name="{name}" string="{flag}"'
    return f"<{mark}parameter {head}>{value if text else json.dumps(value, ensure_ascii=False)}</{mark}parameter>\n"


def invoke(name, body, mark=MARK):
    return f'<{mark}invoke name="{name}">\n{body or chr(10)}</{mark}invoke>\n'


class Completions:
    """Cases of an answer with the tools f and g: (kind, completion, thinking, cause)."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def text(self):
        return self.random.choice(["Hm.", "Let me see", "two\nlines", "日本語 é", "a < b", "x  ", "1. item\n2. item", "\\n literal", "I call f now:"])

    def value(self):
        return self.random.choice(["text", "日本", "a\"b", "two\nlines", "</b>", 5, -1, True, None, [1, 2], {"k": "v"}, 0.5, "<x>"])

    def call(self, mark=MARK):
        names = self.random.sample(["a", "b", "k_e"], self.random.randint(0, 3))
        return invoke(self.random.choice("fg"), "".join(parameter(n, self.value(), mark=mark) for n in names), mark)

    def block(self, calls, name="tool_calls", mark=MARK):
        return f"\n\n<{mark}{name}>\n{calls}</{mark}{name}>"

    def one(self, kind):
        thinking = self.random.random() < 0.5
        head = (self.text() + "</think>" if thinking else "") + self.text()
        calls = "".join(self.call() for _ in range(self.random.randint(1, 3)))
        cause = "stop"
        whole = self.block(calls)
        if kind == "well formed":
            text = head + (whole if self.random.random() < 0.7 else "")
        elif kind.startswith("wrapper "):
            text = head + self.block(calls, kind.removeprefix("wrapper ").replace("_blank_", " "))
        elif kind == "no wrapper":
            text = head + "\n\n" + calls
        elif kind == "ascii bars":
            text = head + self.block("".join(self.call("|DSML|") for _ in range(2)), mark="|DSML|")
        elif kind == "a bar missing":
            text = head + whole.replace(MARK, self.random.choice(["DSML｜", "｜DSML"]))
        elif kind == "blanks in front of names":
            text = head + whole.replace(MARK, MARK + " ")
        elif kind == "leading line feeds":
            text = "\n\n" + head + whole
        elif kind == "blank lines between tags":
            text = head + whole.replace(">\n", ">\n\n")
        elif kind.startswith("cut"):
            text = head + whole
            end = self.random.randint(len(head) + 6, len(text) - 1)
            while MARK in text[end - len(MARK): end + len(MARK)] and not text[:end].endswith(MARK):
                end += 1  # The marker is one token.
            text = text[:end]
            cause = "length" if kind.endswith("length") else "stop"
        elif kind == "no closer of an invoke":
            text = head + self.block(calls.replace(f"</{MARK}invoke>\n", ""))
        elif kind == "second block":
            text = head + whole + whole
        elif kind == "duplicate parameter":
            text = head + self.block(invoke("f", parameter("a", 1) + parameter("a", 2)))
        elif kind == "value that is not JSON":
            text = head + self.block(invoke("f", f'<{MARK}parameter name="a" string="false">{self.random.choice(["yes", "{a: 1}", "1,", "[1"])}</{MARK}parameter>\n'))
        elif kind == "no flag":
            text = head + self.block(invoke("f", parameter("a", "v", attributes='name="a"')))
        elif kind == "attributes swapped":
            text = head + self.block(invoke("f", parameter("a", "v", attributes='string="true" name="a"')))
        elif kind == "JSON body":
            text = head + self.block(invoke("f", json.dumps({"a": self.value()}) + "\n"))
        elif kind == "tags inside of a text":
            text = head + self.block(invoke("f", parameter("a", f"see <{MARK}invoke name=\"g\"> there")))
        elif kind == "markup quoted in the answer":
            text = head + f" `<{MARK}invoke name=\"f\">` and '<{MARK}tool_calls>' is how calls look." if self.random.random() < 0.5 else head + f" A call begins with `<{MARK}`."
        elif kind == "stray end of reasoning":
            text = head + "</think>" + whole
        elif kind == "call inside of the reasoning":
            thinking = True
            text = self.text() + whole
        elif kind == "empty block":
            text = head + self.block("")
        else:
            raise ValueError(kind)
        return {"kind": kind, "completion": text, "thinking": thinking, "cause": cause}


# Difference from the recipe, and why; "" where nothing may differ.
KINDS = {
    "well formed": "content that ends in '<' or '</' keeps one line feed too many in the recipe",
    "wrapper toolcalls": "line feeds in front of the block are kept byte for byte up to two",
    "wrapper function_calls": "as above",
    "wrapper _blank_calls": "as above",
    "no wrapper": "as above",
    "ascii bars": "the recipe gives the markup to the user; here they are calls",
    "a bar missing": "the recipe gives the markup to the user; here they are calls",
    "blanks in front of names": "the recipe loses the calls; here they are calls",
    "leading line feeds": "kept byte for byte: what comes back is then the text that was sampled",
    "blank lines between tags": "white space between tags is no text",
    "cut, stop": "the recipe gives a call with broken JSON; here it is left out, and the answer ends with length",
    "cut, length": "the recipe gives a call with broken JSON; here it is left out",
    "no closer of an invoke": "the recipe loses the next call",
    "second block": "the recipe loses it",
    "duplicate parameter": "the recipe writes the name twice; here the first counts",
    "value that is not JSON": "the recipe writes invalid JSON; here it is a text",
    "no flag": "the recipe writes invalid JSON",
    "attributes swapped": "the recipe loses the parameter",
    "JSON body": "the recipe loses the arguments",
    "tags inside of a text": "the recipe ends the text there",
    "markup quoted in the answer": "the recipe swallows all behind it; here it stays text",
    "stray end of reasoning": "line feeds",
    "call inside of the reasoning": "",
    "empty block": "a block without a call ends with length",
}
# The markup of these is text on purpose.
SHOWN = {"markup quoted in the answer"}
