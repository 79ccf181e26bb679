#!/usr/bin/env python3
"""How many sequences `dsv4 serve` decodes in the same memory, with packed cache rows and with wide ones (docs/kv-cache.md).

  serve_rows.py DSV4 [--weights flash,nvfp4-experts] [--max-layers 4] [--backend cuda] [--state-mib 235]
                [--tokens 65536] [--answer 1500] [--requests N] [--seconds 15] [--rows wide,packed] [--beside-decode 8192]

Both servers start at once, then each is loaded by itself. Prompts are different token ids, so nothing is shared. There is one more than
`inspect`'s numbers have room for, unless --requests says how many. A line every two seconds says how it goes. A sequence counts as decoding
while its tokens come no more than --gap seconds apart; what is printed in the end held for HOLD seconds. A way ends when as many as
there is room for have been seen, when all are answered, or after --seconds."""
import argparse
import json
import random
import re
import subprocess
import sys
import threading
import time
import urllib.request

HOLD = 1.5


def say(text):
    print(text, flush=True)


def metrics(base):
    text = urllib.request.urlopen(base + "/metrics", timeout=60).read().decode()
    values = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            values[name] = float(value)
    return values


class Server:
    def __init__(self, args, rows):
        command = [args.dsv4, "serve", "--weights", f"synthetic:{args.weights}", "--max-layers", str(args.max_layers),
                   "--backend", args.backend, "--port", "0", "--cache-rows", rows, "--state-mib", str(args.state_mib),
                   "--max-sequences", "256", "--prefix-cache-mib", "0",
                   # Without it prompts get 96 tokens a step while anything answers: minutes for so many.
                   "--max-prefill-beside-decode", str(args.beside_decode)]
        if args.backend == "cpu":
            command += ["--threads", str(args.threads)]
        self.rows = rows
        self.base = None
        self.began = time.time()
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines = []
        self.ready = threading.Event()

        def read(stream):
            for line in stream:
                self.lines.append(line)
                found = re.search(r"http://[^\s/]+:\d+", line)
                if found and not self.ready.is_set():
                    self.base = found.group(0)
                    self.seconds = time.time() - self.began
                    self.ready.set()

        for stream in (self.process.stderr, self.process.stdout):
            threading.Thread(target=read, args=(stream,), daemon=True).start()

    def wait(self, seconds):
        deadline = self.began + seconds
        while not self.ready.wait(0.2):
            if self.process.poll() is not None or time.time() > deadline:
                self.stop()
                sys.exit(f"serve of {self.rows} rows did not start:\n" + "".join(self.lines[-20:]))
        say(f"{self.rows:<7} started in {self.seconds:.1f} s")

    def stop(self):
        self.process.kill()
        self.process.wait()


class Request:
    """One answer that is streamed. `last`: when its latest token came, 0 before the first and after the end."""

    def __init__(self, base, ids, answer):
        self.base, self.ids, self.answer = base, ids, answer
        self.last, self.done, self.failure = 0.0, False, None
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        body = json.dumps({"prompt": self.ids, "max_tokens": self.answer, "ignore_eos": True, "temperature": 0,
                           "stream": True}).encode()
        try:
            reply = urllib.request.urlopen(urllib.request.Request(
                self.base + "/v1/completions", body, {"Content-Type": "application/json"}), timeout=900)
            for line in reply:
                if line.startswith(b"data:") and b"[DONE]" not in line:
                    if line.startswith(b'data: {"error"'):  # A random model may answer "error".
                        self.failure = line.decode()[:300]
                    self.last = time.time()
        except Exception as error:  # What a server says of an error is in its body.
            self.failure = f"{error}: {error.read()[:300] if hasattr(error, 'read') else ''}"
        self.last, self.done = 0.0, True


def load(args, server):
    first = Request(server.base, [1, 2, 3], 1)  # Metrics know a sequence's bytes when there has been one.
    while not first.done:
        time.sleep(0.01)
    if first.failure:
        sys.exit(f"the first request failed: {first.failure}")
    now = metrics(server.base)
    one = now["dsv4_state_fixed_bytes"] + (args.tokens + args.answer) * sum(
        value for name, value in now.items() if name.startswith("dsv4_state_token_bytes"))
    room = int(args.state_mib * 2**20 / one)
    number = args.requests or room + 1
    rng = random.Random(5)
    requests = [Request(server.base, [rng.randrange(1000, 5000) for _ in range(args.tokens)], args.answer)
                for _ in range(number)]
    begin = said = time.time()
    recent, most, most_bytes = [], 0, 0.0
    while not all(request.done for request in requests):
        at = time.time()
        decoding = sum(at - request.last < args.gap for request in requests)
        recent.append((at, decoding))
        if recent[0][0] <= at - HOLD:
            while recent[0][0] < at - HOLD:
                recent.pop(0)
            most = max(most, min(count for _, count in recent))
        if at - said >= 2:
            said = at
            now = metrics(server.base)
            most_bytes = max(most_bytes, now["dsv4_state_bytes"])
            say(f"{server.rows:<7} {at - begin:>5.0f} s: {decoding} of {number} decode, {most_bytes / 2**20:.0f} MiB, "
                f"{now.get('dsv4_prefill_tokens_total', 0):.0f} tokens of prompts, "
                f"{now.get('dsv4_output_tokens_total', 0):.0f} of answers")
        if at - begin > args.seconds or most >= room:
            break
        time.sleep(0.05)
    now = metrics(server.base)
    most_bytes = max(most_bytes, now["dsv4_state_bytes"])
    failures = [request.failure for request in requests if request.failure]
    server.stop()
    if failures:
        sys.exit(f"{len(failures)} requests failed: {failures[0]}\n" + "".join(server.lines[-5:]))
    say(f"{server.rows:<7} {most} sequences decoded at once, of {room} that inspect's numbers have room for "
        f"({one / 2**20:.2f} MiB each); {most_bytes / 2**20:.1f} of {args.state_mib} MiB seen, "
        f"{now.get('dsv4_preemptions_total', 0):.0f} preemptions, {time.time() - begin:.1f} s")
    return most


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dsv4")
    parser.add_argument("--weights", default="flash,nvfp4-experts")
    parser.add_argument("--max-layers", type=int, default=4)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--state-mib", type=int, default=235)
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--answer", type=int, default=1500)
    parser.add_argument("--requests", type=int, default=0)
    parser.add_argument("--beside-decode", type=int, default=8192)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--start-seconds", type=float, default=120)
    parser.add_argument("--gap", type=float, default=0.5)
    parser.add_argument("--rows", default="wide,packed")
    args = parser.parse_args()
    servers = [Server(args, rows) for rows in args.rows.split(",")]
    try:
        for server in servers:
            server.wait(args.start_seconds)
        most = {server.rows: load(args, server) for server in servers}
    finally:
        for server in servers:
            server.stop()
    if most.get("wide") and "packed" in most:
        say(f"packed rows: {most['packed'] / most['wide']:.2f} times the sequences of wide ones in the same memory")


if __name__ == "__main__":
    main()
