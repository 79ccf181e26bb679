"""Everything against PyPI's deepseek-recipe, DeepSeek's own converter, encoder and stream parser: `./dev test --recipe`.

10,000 random conversations and what their differences are; recorded request bodies of three dialects; the shapes of agents; completions,
well formed and damaged. Prints a table and every difference with its reason; one without a reason, or a leak of markup, fails.
"""

import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request

import deepseek_recipe as recipe

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.setdefault("DSV4_BINARY", str(ROOT / "build" / "release" / "dsv4"))
sys.path[:0] = [str(pathlib.Path(__file__).parent), str(ROOT / "tests" / "server"), str(ROOT / "tests" / "cli"), str(ROOT / "tests" / "diag")]
import v41  # noqa: E402
from conversations import KINDS, REASONS, SHOWN, Completions, Conversations  # noqa: E402
from reasons import reason_of  # noqa: E402

from server_process import Server  # noqa: E402

NUM_CONVERSATIONS = int(os.environ.get("DSV4_RECIPE_CONVERSATIONS", "10000"))
SHAPES = json.loads((ROOT / "tests" / "fixtures" / "client-shapes.json").read_text())
TOOLS = [{"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object", "properties": {"a": {}, "b": {}, "k_e": {}}}}}
         for name in "fg"]


def run_cases(command, cases, *options):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(cases, file)
        file.flush()
        done = subprocess.run([BINARY, command, "--cases", file.name, *options], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def message_of(message):
    role = message["role"]
    if role == "system":
        return recipe.SystemMessage(message["content"])
    if role == "user":
        return recipe.UserMessage(message["content"])
    if role == "tool":
        return recipe.ToolMessage(message["content"], message["tool_call_id"])
    calls = [recipe.ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]
    return recipe.AssistantMessage(message["content"], message.get("reasoning_content"), calls or None)


def render(conversation):
    tools = [recipe.ToolDefinition(**tool) for tool in conversation["tools"]]
    return recipe.DeepseekV4Encoding().render_conversation(recipe.Conversation(
        [message_of(message) for message in conversation["messages"]], thinking_mode=conversation["thinking"], tools=tools,
        reasoning_effort=conversation["effort"])).prompt


def case_of(name, conversation):
    tools = [{"type": "function", "function": tool} for tool in conversation["tools"]]
    return {"name": name, "messages": conversation["messages"], "tools": tools or None,
            "options": {"thinking_mode": "thinking" if conversation["thinking"] else "chat", "drop_thinking": True,
                        "reasoning_effort": conversation["effort"], "revision": "v4-0731"}}


class Rendering(unittest.TestCase):
    source, reasons, case_of, render = Conversations, REASONS, staticmethod(case_of), staticmethod(render)

    def differing(self, conversations):
        outs = run_cases("encode", [self.case_of(str(i), one) for i, one in enumerate(conversations)])
        return [(one, self.render(one), out) for one, out in zip(conversations, outs, strict=True) if out.get("rendered") != self.render(one)]

    def test_conversations(self):
        messages = 0
        for seed in range(max(1, NUM_CONVERSATIONS // 1000)):
            source = self.source(seed)
            conversations = [source.one() for _ in range(min(1000, NUM_CONVERSATIONS))]
            messages += sum(len(one["messages"]) for one in conversations)
            for conversation, theirs, ours in self.differing(conversations)[:1]:
                self.fail(f"{json.dumps(conversation, ensure_ascii=False)}\nrecipe {theirs!r}\ndsv4   {ours}")
        print(f"\nconversations: {NUM_CONVERSATIONS}, messages: {messages}, texts that differ: 0")

    def test_differences_by_design(self):
        print("\nconversations with a known difference (differ of 100, and why)")
        for i, (name, reason) in enumerate(self.reasons.items()):
            source = self.source(1000 + i, name)
            differ = self.differing([source.one() for _ in range(100)])
            print(f"  {len(differ):3}  {name}: {reason}")
            self.assertTrue(differ, f"{name}: no difference any more; its reason is stale")


class RenderingOfV41(Rendering):
    source, reasons, case_of, render = v41.ConversationsOfV41, v41.REASONS, staticmethod(v41.case_of), staticmethod(v41.render)


class Bodies(unittest.TestCase):
    model, version, encoding = "tiny", recipe.ModelVersion.DeepseekV4Pro, recipe.DeepseekV4Encoding()
    refused = "no shape at all"
    REQUESTS = {"chat": recipe.ChatCompletionRequest, "responses": recipe.ResponsesRequest, "messages": recipe.MessagesRequest}

    @classmethod
    def setUpClass(cls):
        directory = ROOT / "models" / cls.model
        cls.server = Server("--revision", "v4-0731" if cls.model == "tiny" else "v4.1", "--alias", "*", model=directory)
        cls.options = recipe.ConversionOptions().with_model_alias("tiny", cls.version)
        cls.encoding = cls.encoding.with_tokenizer(recipe.Tokenizer.from_file(str(directory / "tokenizer.json")))

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def theirs(self, api, body):
        try:
            request = self.REQUESTS[api](json.dumps(body)).convert(self.options)
            return self.encoding.encode(request.conversation), request
        except recipe.ConversionError as error:
            return None, error.body
        except (ValueError, TypeError, RuntimeError, OverflowError) as error:
            return None, str(error)

    def ours(self, api, body):
        data = json.dumps(body).encode()
        url = self.server.url + ("/tokenize" if api == "chat" else f"/tokenize?api={api}")
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data, {"Content-Type": "application/json"})) as reply:
                return json.load(reply)["tokens"], ""
        except urllib.error.HTTPError as error:
            self.assertLess(error.code, 500, body)
            return None, json.load(error)["error"]["message"]

    def test_bodies(self):
        counts = collections.Counter()
        without = []
        lines = collections.Counter()
        for line in (pathlib.Path(__file__).parent / "bodies.jsonl").read_text().strip().split("\n"):
            case = json.loads(line)
            api, body = case["api"], case["body"]
            theirs, their_error = self.theirs(api, body)
            ours, our_error = self.ours(api, body)
            kind = ("both refuse" if theirs is None and ours is None else "only the recipe refuses" if theirs is None else
                    "only dsv4 refuses" if ours is None else "same" if theirs == ours else "other prompt")
            counts[api, kind] += 1
            if kind in ("both refuse", "same"):
                continue
            reason = reason_of(kind, case)
            lines[kind, reason or "?"] += 1
            if not reason:
                without.append(f"{kind}: {api}: {case['name']}: {json.dumps(body, ensure_ascii=False)[:300]} ({(their_error if theirs is None else our_error)[:160] if kind != 'other prompt' else ''})")
        print("\nbodies", *(f"  {api}: {kind}: {count}" for (api, kind), count in sorted(counts.items())), sep="\n")
        print("differences of bodies", *(f"  {count:3}  {kind}: {reason}" for (kind, reason), count in sorted(lines.items())), sep="\n")
        self.assertEqual(without, [], "differences without a reason:\n" + "\n".join(without))

    def test_client_shapes(self):
        taken = 0
        for shape in SHAPES["cases"]:
            base = SHAPES["bases"][shape["base"]]
            body = {name: value for name, value in {**base["body"], **shape["change"]}.items() if value is not None}
            ours, error = self.ours(base["api"], body)
            taken += ours is not None
            if ours is None:
                print(f"  refused: {shape['name']}: {error}")
                self.assertIn(self.refused, error)
        print(f"\nclient shapes: {taken} of {len(SHAPES['cases'])} taken")


class BodiesOfV41(Bodies):
    model, version, encoding = "tiny-v41", recipe.ModelVersion.DeepseekV41Flash, recipe.DeepseekV41Encoding()
    refused = "a picture; the model reads pictures and dsv4 does not yet"


class Parsing(unittest.TestCase):
    revision, version = "v4-0731", recipe.ModelVersion.DeepseekV4Pro

    @staticmethod
    def spelled(text):
        return text

    def theirs(self, case):
        stage = recipe.ThinkingInitialStage.ReasoningStart if case["thinking"] else None
        request = recipe.ConversationRequest(recipe.Conversation([recipe.UserMessage("u")], thinking_mode=case["thinking"]), self.version)
        processor = recipe.StreamProcessor(recipe.ChatCompletionRequest.chunk_generator(request, "ID", "tiny"),
                                           recipe.ParsingOptions(parse_tool_calls=True, thinking_initial_stage=stage))
        response = recipe.ChatCompletionResponse("ID", "tiny", 0, 0, 0)
        reason = recipe.InferenceFinishReason.Length if case["cause"] == "length" else recipe.InferenceFinishReason.Stop
        for chunk in (recipe.InferenceChunk.ready(prompt_usage=recipe.PromptUsage()), recipe.InferenceChunk.text(case["completion"], 1), recipe.InferenceChunk.finish(reason)):
            for made in processor.push(chunk):
                response.accumulate(made)
        for made in processor.finish():
            response.accumulate(made)
        choice = json.loads(response.to_json())["choices"][0]
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in choice["message"].get("tool_calls") or []]
        return {"reasoning": choice["message"].get("reasoning_content") or "", "content": choice["message"].get("content") or "",
                "calls": calls, "finish": choice["finish_reason"]}

    @staticmethod
    def same(a, b):
        def calls(result):
            read = []
            for name, arguments in result["calls"]:
                try:
                    read.append((name, json.loads(arguments)))
                except ValueError:
                    return None
            return read
        return (a["reasoning"], a["content"], a["finish"]) == (b["reasoning"], b["content"], b["finish"]) and calls(a) == calls(b)

    def test_completions(self):
        source = Completions(7)
        cases = [source.one(kind) for kind in KINDS for _ in range(1500 if kind == "well formed" else 120)]
        for case in cases:
            case["completion"] = self.spelled(case["completion"])
        outs = run_cases("parse", [{"name": str(i), "completion": case["completion"], "mode": "thinking" if case["thinking"] else "chat",
                                    "tools": TOOLS, "cause": case["cause"], "revision": self.revision} for i, case in enumerate(cases)], "--lenient")
        differ, leaks, bad = collections.Counter(), [], []
        for case, out in zip(cases, outs, strict=True):
            message = out["message"]
            ours = {"reasoning": message.get("reasoning_content") or "", "content": message["content"] or "",
                    "calls": [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or []],
                    "finish": message["finish_reason"]}
            if not self.same(self.theirs(case), ours):
                differ[case["kind"]] += 1
                if not KINDS[case["kind"]]:
                    bad.append((case, self.theirs(case), ours))
            if case["kind"] not in SHOWN and "DSML" in ours["content"] + ours["reasoning"]:
                leaks.append((case, ours))
            for _, arguments in ours["calls"]:
                self.assertIsInstance(json.loads(arguments), dict)
        print(f"\ncompletions: {len(cases)}; differ, and why")
        for kind, count in differ.items():
            print(f"  {count:3}  {kind}: {KINDS[kind]}")
        print(f"leaks of markup: {len(leaks)}")
        self.assertEqual(leaks[:3], [])
        self.assertEqual(bad[:3], [])


class ParsingOfV41(Parsing):
    revision, version = "v4.1", recipe.ModelVersion.DeepseekV41Flash

    @staticmethod
    def spelled(text):
        return re.sub(r"(DSML[｜|]?) ?(?:tool_)?(calls|invoke|parameter)", r"\1 \2", text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
