# debian: promtool
"""Prometheus' own reader of metrics: no complaint about ours, and every name that the dashboard asks for is there."""

import json
import pathlib
import re
import subprocess
import sys
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]


def get(path, body=None):
    with urllib.request.urlopen(urllib.request.Request(sys.argv[1] + path, body)) as reply:
        return reply.read().decode()


get("/v1/completions", json.dumps({"model": "tiny", "prompt": "Once", "max_tokens": 8}).encode())
metrics = get("/metrics")
done = subprocess.run(["promtool", "check", "metrics"], input=metrics, capture_output=True, text=True)
assert done.returncode == 0 and not done.stdout + done.stderr, (done.returncode, done.stdout, done.stderr)
names = set(re.findall(r"^# TYPE (\S+)", metrics, re.MULTILINE))
asked = set()
for path in sorted((ROOT / "deploy").rglob("*.json")):
    asked |= {re.sub(r"_(?:bucket|sum|count)$", "", name) for name in re.findall(r"\bdsv4_[a-z_]+", path.read_text())}
assert asked and asked <= names | {name.removesuffix("_total") for name in names}, asked - names
print(f"{len(names)} metrics, {len(asked)} of them in the dashboard")
