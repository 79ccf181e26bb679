#!/usr/bin/env python3
"""How many sequences `dsv4 serve` keeps in the same memory, with packed cache rows and with wide ones (docs/kv-cache.md).

  serve_rows.py DSV4 [--weights flash,nvfp4-experts] [--max-layers 8] [--backend cuda] [--state-mib 4096]
                [--tokens 16384] [--requests 40] [--answer 64]

For each way it starts a server with --state-mib, sends all requests at once (different prompts of token ids, so nothing is shared), and
looks at /metrics until all are answered: the most sequences that were decoded in one step, the most memory of states beside what
`inspect` says of as many sequences, preemptions, and tokens a second."""
import argparse
import json
import random
import re
import subprocess
import sys
import threading
import time
import urllib.request


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
                   "--max-sequences", str(args.requests), "--prefix-cache-mib", "0"]
        if args.backend == "cpu":
            command += ["--threads", str(args.threads)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines = []
        ready = threading.Event()

        def read(stream):
            for line in stream:
                self.lines.append(line)
                found = re.search(r"http://[^\s/]+:\d+", line)
                if found and not ready.is_set():
                    self.base = found.group(0)
                    ready.set()

        for stream in (self.process.stderr, self.process.stdout):
            threading.Thread(target=read, args=(stream,), daemon=True).start()
        deadline = time.time() + 300
        while not ready.wait(1):
            if self.process.poll() is not None or time.time() > deadline:
                sys.exit("serve did not start:\n" + "".join(self.lines[-20:]))

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


def ask(base, ids, answer, failures):
    body = json.dumps({"prompt": ids, "max_tokens": answer, "ignore_eos": True, "temperature": 0}).encode()
    request = urllib.request.Request(base + "/v1/completions", body, {"Content-Type": "application/json"})
    try:
        reply = json.load(urllib.request.urlopen(request, timeout=900))
        if reply["usage"]["completion_tokens"] != answer:
            failures.append(f"{reply['usage']}")
    except Exception as error:  # What a server says of an error is in its body.
        failures.append(f"{error}: {error.read()[:200] if hasattr(error, 'read') else ''}")


def run(args, rows):
    server = Server(args, rows)
    failures, most = [], {"sequences": 0.0, "bytes": 0.0}
    rng = random.Random(5)
    asks = [threading.Thread(target=ask, args=(server.base, [rng.randrange(1000, 20000) for _ in range(args.tokens)],
                                               args.answer, failures)) for _ in range(args.requests)]
    begin = time.time()
    for thread in asks:
        thread.start()
    while any(thread.is_alive() for thread in asks):
        now = metrics(server.base)
        most["sequences"] = max(most["sequences"], now.get("dsv4_requests_running", 0))
        most["bytes"] = max(most["bytes"], now.get("dsv4_state_bytes", 0))
        time.sleep(0.02)
    seconds = time.time() - begin
    last = metrics(server.base)
    server.stop()
    if failures:
        sys.exit(f"{len(failures)} requests failed: {failures[0]}\n" + "".join(server.lines[-5:]))
    token_bytes = sum(value for name, value in last.items() if name.startswith("dsv4_state_token_bytes"))
    one = last["dsv4_state_fixed_bytes"] + token_bytes * (args.tokens + args.answer)
    print(f"{rows:<7} {most['sequences']:>4.0f} sequences at once, {most['bytes'] / 2**20:>8.1f} MiB of states at most, "
          f"{one / 2**20:>7.2f} MiB a sequence by inspect's numbers ({most['bytes'] / one:.2f} of those), "
          f"{last.get('dsv4_preemptions_total', 0):.0f} preemptions, {seconds:.1f} s, "
          f"{args.requests * (args.tokens + args.answer) / seconds:.0f} tok/s", flush=True)
    return most["sequences"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dsv4")
    parser.add_argument("--weights", default="flash,nvfp4-experts")
    parser.add_argument("--max-layers", type=int, default=8)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--state-mib", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--answer", type=int, default=64)
    args = parser.parse_args()
    wide, packed = run(args, "wide"), run(args, "packed")
    print(f"packed keeps {packed / wide:.2f} times the sequences")


if __name__ == "__main__":
    main()
