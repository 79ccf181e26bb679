"""Calls for requests of the Berkeley function calling leaderboard (simple and parallel) satisfy their schemas, every one. Tools are strict and a call is
required, so this holds for a model of any quality. Shown as skipped where bfcl-eval (for its data) or jsonschema is not installed.

BFCL_REQUESTS=N takes N requests of each file, 0 all; BFCL_DATA names the data's folder in place of the package's.
"""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import unittest
import urllib.request

try:
    import jsonschema
except ImportError:
    print("skipped: jsonschema is not installed")
    sys.exit(77)
package = importlib.util.find_spec("bfcl_eval")
DATA = pathlib.Path(os.environ.get("BFCL_DATA") or (pathlib.Path(package.origin).parent / "data" if package else "none"))
if not DATA.is_dir():
    print("skipped: bfcl-eval is not installed")
    sys.exit(77)

from dsv4_process import BINARY, TINY  # noqa: E402

REQUESTS = int(os.environ.get("BFCL_REQUESTS", "25"))
TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}


def schema_of(parameters):
    """The parameters with the types of JSON Schema, as the leaderboard itself rewrites them."""
    if isinstance(parameters, list):
        return [schema_of(item) for item in parameters]
    if not isinstance(parameters, dict):
        return parameters
    out = {key: schema_of(value) for key, value in parameters.items()}
    if isinstance(out.get("type"), str):
        out["type"] = TYPES.get(out["type"], out["type"])
    for key in ("optional", "default") if "type" in out else ():  # Words of its own.
        if not isinstance(out.get(key), dict):
            out.pop(key, None)
    return out


class Bfcl(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = subprocess.Popen([BINARY, "serve", "--port", "0", "-m", str(TINY)], stderr=subprocess.PIPE, text=True)
        line = ""
        while " at http" not in line:
            line = cls.server.stderr.readline()
        cls.url = line.split(" at ")[1].split()[0]

    @classmethod
    def tearDownClass(cls):
        cls.server.kill()
        cls.server.wait()
        cls.server.stderr.close()

    def ask(self, body):
        request = urllib.request.Request(self.url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as reply:
            return json.loads(reply.read())["choices"][0]

    def run_file(self, name, parallel):
        lines = [json.loads(line) for line in (DATA / name).read_text().splitlines()]
        calls = cut = 0
        lines = lines[:REQUESTS] if REQUESTS else lines
        for number, line in enumerate(lines):
            schemas = {function["name"]: schema_of(function["parameters"]) for function in line["function"]}
            tools = [{"type": "function", "function": {"name": function["name"], "description": function["description"], "strict": True,
                                                       "parameters": schemas[function["name"]]}} for function in line["function"]]
            choice = self.ask({"messages": line["question"][0], "tools": tools, "tool_choice": "required", "thinking": False, "seed": number,
                               "temperature": 1, "max_tokens": 600, "parallel_tool_calls": parallel})
            cut += choice["finish_reason"] == "length"
            made = choice["message"].get("tool_calls") or []
            if choice["finish_reason"] != "length":
                self.assertTrue(made, line["id"])
            self.assertFalse((choice["message"].get("content") or "").strip(), line["id"])
            # An answer that was cut shows the part of its last call that there is.
            for call in made[:-1] if choice["finish_reason"] == "length" else made:
                calls += 1
                self.assertIn(call["function"]["name"], schemas)
                arguments = json.loads(call["function"]["arguments"])
                jsonschema.validate(arguments, schemas[call["function"]["name"]])
        print(f"{name}: {len(lines)} requests, {calls} calls, all valid; {cut} answers cut by their length")
        self.assertGreater(calls, len(lines) // 2)

    def test_simple(self):
        self.run_file("BFCL_v4_simple_python.json", parallel=False)

    def test_parallel(self):
        self.run_file("BFCL_v4_parallel.json", parallel=True)


if __name__ == "__main__":
    unittest.main()
