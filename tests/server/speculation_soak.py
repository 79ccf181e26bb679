#!/usr/bin/env python3
"""Many clients of a server that verifies drafts, against the answers of a quiet server that does not:

    ./dev build && python3 tests/server/speculation_soak.py [--minutes 30] [--speculation mtp:3] [--streams 64] [--prompts 500] [SERVE ARGUMENT ...]

Asks `models/tiny` for the answers to N requests one after the other with `--speculation off`. They are greedy and at temperatures of 0.7
and 1 with a seed of their own. Some have penalties, log-probabilities, a JSON schema, several answers or a stop string. Then that many
clients ask a server with speculation the same requests. At first all come once, then they come at random, for as long as it takes. States of running sequences have half the room
that all of them want, so some are preempted. Prints what was asked, and exits with 1 if an answer was another one or failed, or if no draft was right.
"""

import argparse
import json
import os
import pathlib
import random
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHAT = "/v1/chat/completions"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "big": {"type": "boolean"}}, "required": ["city", "big"]}


def requests(count):
    lines = (ROOT / "bench/speculation/prompts.jsonl").read_text(encoding="utf-8").splitlines()
    conversations = [json.loads(line)["messages"] for line in lines]
    made = []
    for i in range(count):
        body = {"messages": conversations[i * 7 % len(conversations)], "temperature": (0, 0.7, 1)[i % 3], "seed": i, "max_tokens": 30 + i * 37 % 170}
        if i % 7 == 3:
            body |= {"frequency_penalty": 0.4, "repetition_penalty": 1.1}
        if i % 11 == 5:
            body |= {"logprobs": True, "top_logprobs": 2}
        if i % 13 == 6:
            body |= {"response_format": {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}}
        if i % 17 == 8:
            body["n"] = 3
        if i % 19 == 9:
            body["stop"] = ["the"]
        made.append(body)
    return made


def answer(server, body):
    reply = server.post(CHAT, body)
    return reply["choices"], reply["usage"]["completion_tokens"]


class Clients:
    """Each asks one request after the other."""

    def __init__(self, server, bodies, wanted, seconds):
        self.server, self.bodies, self.wanted = server, bodies, wanted
        self.until, self.lock = time.monotonic() + seconds, threading.Lock()
        self.first_round = iter(range(len(bodies)))
        self.num_answers, self.num_tokens, self.wrong = 0, 0, []

    def run(self, number):
        rng = random.Random(number)
        while True:
            with self.lock:
                i = next(self.first_round, None)
            if i is None:
                if time.monotonic() > self.until:
                    return
                i = rng.randrange(len(self.bodies))
            try:
                got = answer(self.server, self.bodies[i])
            except (AssertionError, OSError) as error:
                got = (str(error), 0)
            with self.lock:
                self.num_answers += 1
                self.num_tokens += got[1]
                if got != self.wanted[i]:
                    self.wrong.append((i, got[0], self.wanted[i][0]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=500)
    parser.add_argument("--speculation", default="mtp:3")
    parser.add_argument("--binary", default=str(ROOT / "build/release/dsv4"))
    arguments, more = parser.parse_known_args()
    os.environ["DSV4_BINARY"] = arguments.binary
    sys.path += [str(ROOT / "tests/cli"), str(ROOT / "tests/server")]
    from server_process import Server  # Reads DSV4_BINARY.

    bodies = requests(arguments.prompts)
    begin = time.monotonic()
    with Server("--speculation", "off", *more) as server:
        wanted = [answer(server, body) for body in bodies]
    print(f"quiet server: {len(wanted)} answers, {sum(tokens for _, tokens in wanted)} tokens, {time.monotonic() - begin:.0f} s", flush=True)
    with Server("--speculation", arguments.speculation, "--max-sequences", arguments.streams, "--state-mib", 16, *more) as server:
        server.patience = 600
        clients = Clients(server, bodies, wanted, 60 * arguments.minutes)
        threads = [threading.Thread(target=clients.run, args=(number,)) for number in range(arguments.streams)]
        begin = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - begin
        metric = server.metric
        drafted, accepted = metric("dsv4_draft_tokens_total"), metric("dsv4_accepted_draft_tokens_total")
        steps, output = metric("dsv4_decode_steps_total"), metric("dsv4_output_tokens_total")
        preempted = metric("dsv4_preemptions_total")
    print(f"--speculation {arguments.speculation}, {arguments.streams} streams, {seconds:.0f} s: {clients.num_answers} answers, "
          f"{clients.num_tokens} tokens, {clients.num_tokens / seconds:.0f} a second; {drafted:.0f} drafted, {accepted:.0f} right, "
          f"{output / max(steps, 1):.2f} tokens a step; {preempted:.0f} preemptions")
    print(f"{len(clients.wrong)} answers were not those of the quiet server")
    for i, got, want in clients.wrong[:5]:
        print(f"  request {i}: {json.dumps(bodies[i])[:200]}\n    got    {str(got)[:300]}\n    wanted {str(want)[:300]}")
    return 1 if clients.wrong or accepted == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
