"""Texts and tool calls sampled under the masks of random JSON schemas satisfy them, by the judgement of the Python package jsonschema."""

import json
import os
import random
import re
import subprocess
import sys
import unittest

try:
    import jsonschema
except ImportError:  # Shown as skipped, see CMakeLists.txt; ./dev venv installs it.
    print("skipped: the Python package jsonschema is not installed")
    sys.exit(77)

NUM_SCHEMAS = 300
NAMES = ["a", "ab", "x", "the", "é", "k\"q", "n/~"]
PATTERNS = ["^a+$", "b", "^(the|x)[0-9]{2,3}$", "^[^a-z\"]?$", "é|\\\\", "^\\w+@\\w+$", "^.{1,3}$"]
FORMATS = ["date-time", "date", "time", "uuid", "email", "ipv4"]
# Formats that the package checks only with other packages installed, said again.
FORMAT_PATTERNS = {
    "time": r"\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)",
    "date-time": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)",
    "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
}


class Schemas:
    """Random schemas of the keywords that are understood."""

    def __init__(self, seed, more=False):
        self.random = random.Random(seed)
        self.more = more  # Keywords that said nothing of calls at first.

    def maybe(self, schema, key, value, chance=0.5):
        if self.random.random() < chance:
            schema[key] = value

    def string(self):
        schema = {"type": "string"}
        kind = self.random.random()
        if kind < 0.3:
            schema["pattern"] = self.random.choice(PATTERNS)
        elif kind < 0.6:
            schema["format"] = self.random.choice(FORMATS)
        elif kind < 0.9:
            low = self.random.randint(0, 3)
            self.maybe(schema, "minLength", low)
            self.maybe(schema, "maxLength", low + self.random.randint(0, 5))
        if self.more:
            self.maybe(schema, "not", self.random.choice([{"enum": ["", "a", "é"]}, {"pattern": "b"}, {"minLength": 6}]), 0.2)
        return schema

    def number(self):
        schema = {"type": self.random.choice(["integer", "number"])}
        digits = self.random.choice([0, 0, 1, 3])
        low = round(self.random.uniform(-200, 200), digits)
        self.maybe(schema, self.random.choice(["minimum", "exclusiveMinimum"]), low)
        high = round(low + self.random.uniform(2, 300), digits)
        self.maybe(schema, self.random.choice(["maximum", "exclusiveMaximum"]), high)
        if self.more:
            self.maybe(schema, "multipleOf", self.random.choice([1, 2, 3, 0.5]), 0.2)
            self.maybe(schema, "not", self.random.choice([{"const": 0}, {"enum": [1, 2.5]}, {"exclusiveMinimum": high}]), 0.2)
        return schema

    def more_of_object(self, schema, names):
        """Keywords about members that are not those of every schema."""
        kind = self.random.random()
        some = self.random.sample(names, min(2, len(names)))
        if kind < 0.2:
            schema["patternProperties"] = {"^the": self.number(), "[xé]$": self.string()}
        elif kind < 0.3:
            schema["minProperties"] = len(schema.get("required", [])) + (schema.get("additionalProperties") not in (None, False))
            schema["maxProperties"] = schema["minProperties"] + 1
        elif kind < 0.4:
            schema["propertyNames"] = {"not": {"const": "q"}, "maxLength": 3}
        elif kind < 0.6 and len(some) == 2:
            schema["dependentRequired"] = {some[0]: [some[1]]}
        elif kind < 0.7 and len(some) == 2:
            schema["dependentSchemas"] = {some[0]: {"required": [some[1]]}}
        elif kind < 0.9 and len(some) == 2:
            schema["if"] = self.random.choice([{"required": [some[0]]}, {"properties": {some[0]: {"type": ["string", "null"]}}}])
            schema["then"] = {"required": [some[1]]}
            self.maybe(schema, "else", {"not": {"required": [some[1]]}})
        elif len(some) == 2:
            schema["not"] = {"required": some}

    def object(self, depth):
        names = self.random.sample(NAMES, self.random.randint(0, 4))
        schema = {"type": "object", "properties": {name: self.any(depth - 1) for name in names}}
        self.maybe(schema, "required", self.random.sample(names, self.random.randint(0, len(names))))
        self.maybe(schema, "additionalProperties", self.random.choice([False, False, self.any(0)]), 0.7)
        if self.more:
            self.more_of_object(schema, names)
        return schema

    def array(self, depth):
        schema = {"type": "array"}
        if self.more and self.random.random() < 0.3:
            values = self.random.sample([1, "a", None, True, "é\""], 3)
            return self.random.choice([
                {"type": "array", "items": {"enum": values}, "uniqueItems": True, "minItems": self.random.randint(0, 3)},
                {"type": "array", "items": {"enum": values}, "contains": {"const": values[0]}, "maxItems": self.random.randint(1, 4)},
                {"type": "array", "contains": {"type": "integer", "minimum": 3}, "minContains": self.random.randint(0, 2)},
                {"type": "array", "items": {"type": ["integer", "string"]}, "contains": {"type": "integer", "minimum": 3},
                 "minContains": self.random.randint(0, 2), "maxContains": self.random.randint(2, 3)},
                {"type": "array", "items": {"enum": values}, "contains": {"const": values[0]}, "minContains": 0, "maxContains": 1, "maxItems": 20000},
                {"type": "array", "prefixItems": [{"enum": values}, {"type": "string"}], "items": {"type": "integer"}, "contains": {"type": "integer"}},
            ])
        self.maybe(schema, "items", self.random.choice([self.any(depth - 1), self.any(depth - 1), False]), 0.8)
        prefix = [self.any(depth - 1) for _ in range(self.random.randint(1, 2))]
        self.maybe(schema, "prefixItems", prefix, 0.3)
        low = self.random.randint(0, len(schema.get("prefixItems", [])) if schema.get("items") is False else 2)
        self.maybe(schema, "minItems", low)
        self.maybe(schema, "maxItems", low + self.random.randint(0, 2))
        return schema

    def any(self, depth):
        kind = self.random.random()
        if depth > 0 and kind < 0.35:
            return self.object(depth)
        if depth > 0 and kind < 0.5:
            return self.array(depth)
        if depth > 0 and kind < 0.6:
            return {self.random.choice(["anyOf", "oneOf_as_anyOf"]): [self.any(depth - 1), self.any(depth - 1)]}
        if depth > 0 and kind < 0.65:
            return {"allOf": [self.number() | {"type": "number"}, {"type": ["number", "string"]}]}
        if depth > 0 and kind < 0.7:
            return {"anyOf": [{"$ref": "#/$defs/list"}, {"type": "boolean"}]}
        if kind < 0.8:
            return self.random.choice([self.string, self.number])()
        if kind < 0.9:
            return {"enum": self.random.sample([1, "a", "é\"", None, True, 2.5, [1, {}], {"k": "v"}], 3)}
        return self.random.choice([{}, True, {"type": ["null", "boolean"]}, {"const": "x\ny"}])

    def tool(self, name):
        recursive, parameters = self.recursive(), self.object(3)
        for key in list(parameters["properties"]):  # Between the quotes of a tag there are no escapes.
            if '"' in key:
                del parameters["properties"][key]
        parameters["required"] = [key for key in parameters.get("required", []) if '"' not in key]
        strict = self.random.random() < 0.7
        if not strict and self.random.random() < 0.5:  # Not understood, so not followed; the rest is.
            parameters["propertyNames"] = {"maxLength": 1000}
        shape = self.random.random()
        if shape < 0.2:
            parameters = {"$ref": "#/$defs/all", "$defs": {"all": parameters}}
        elif shape < 0.3:
            parameters = {"anyOf": [parameters, self.object(2) | {"properties": {}, "required": []}]}
        parameters.setdefault("$defs", {})["list"] = recursive
        return {"name": name, "parameters": json.loads(json.dumps(parameters).replace("oneOf_as_anyOf", "anyOf")), "strict": strict}

    def request(self):
        return {"tools": [self.tool(name) for name in self.random.sample(["f", "get_time", "getTime", "f2"], self.random.randint(1, 3))],
                "text": self.random.random() < 0.4, "thinking": self.random.random() < 0.5, "parallel": self.random.random() < 0.7}

    def recursive(self):
        return {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/list"}, {"type": "null"}]}},
                "required": ["next"], "additionalProperties": False}

    def document(self):
        recursive = self.recursive()
        text = json.dumps({"allOf": [self.any(3)], "$defs": {"list": recursive}}, ensure_ascii=False)
        return text.replace("oneOf_as_anyOf", "anyOf")


def validator_of(schema):
    checker = jsonschema.FormatChecker()
    for name, pattern in FORMAT_PATTERNS.items():
        checker.checks(name)(lambda value, p=pattern: not isinstance(value, str) or re.fullmatch(p, value) is not None)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema, format_checker=checker)


def walk(lines, *arguments):
    process = subprocess.run([os.environ["GRAMMAR_WALK"], *arguments], input="\n".join(lines) + "\n", capture_output=True,
                             text=True, timeout=600, check=True)
    return [json.loads(line) for line in process.stdout.rstrip("\n").split("\n")]


class Walks(unittest.TestCase):
    def test_every_text_satisfies_its_schema(self):
        documents = [Schemas(seed, more=seed % 2 == 1).document() for seed in range(NUM_SCHEMAS)]
        lines = walk(documents)
        self.assertEqual(len(lines), len(documents))
        texts = unended = 0
        for document, line in zip(documents, lines):
            validator = validator_of(json.loads(document))
            if "error" in line:  # Only for schemas that contradict themselves.
                self.assertIn("no value satisfies", line["error"], document)
                continue
            for text in line["texts"]:
                texts += text is not None
                unended += text is None
                if text is not None:
                    errors = [error.message for error in validator.iter_errors(json.loads(text))]
                    self.assertEqual(errors, [], f"{document}\n{text}")
        print(f"{texts} texts of {NUM_SCHEMAS} schemas; {unended} walks did not end in time")
        self.assertGreater(texts, 5 * NUM_SCHEMAS)
        self.assertLess(unended, texts // 100)

    def test_every_call_satisfies_its_tool(self):
        requests = [Schemas(1000 + seed).request() for seed in range(NUM_SCHEMAS)]
        answers = calls = unended = with_text = 0
        for request, line in zip(requests, walk([json.dumps(request) for request in requests], "--calls"), strict=True):
            if "error" in line:
                self.assertIn("no value satisfies", line["error"], request)
                continue
            validators = {tool["name"]: validator_of(tool["parameters"]) for tool in request["tools"]}
            for answer in line["answers"]:
                answers += 1
                if answer is None:
                    unended += 1
                    continue
                if not request["text"]:
                    self.assertTrue(answer["calls"], answer)
                    self.assertEqual(answer["content"], "", answer)
                if not request["parallel"]:
                    self.assertLessEqual(len(answer["calls"]), 1, answer)
                with_text += bool(answer["calls"] and answer["content"])
                self.assertNotIn("<｜DSML｜tool_calls>", answer["content"])
                for call in answer["calls"]:
                    calls += 1
                    errors = [error.message for error in validators[call["name"]].iter_errors(json.loads(call["arguments"]))]
                    self.assertEqual(errors, [], f"{json.dumps(request)}\n{answer['text']}\n{call}")
        print(f"{calls} calls in {answers} answers, {with_text} of them behind text; {unended} walks did not end in time")
        self.assertGreater(calls, 4 * NUM_SCHEMAS)
        self.assertGreater(with_text, 50)
        self.assertLess(unended, answers // 100)


if __name__ == "__main__":
    unittest.main()
