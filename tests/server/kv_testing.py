"""Requests that make a server keep blocks of prompts and give them up again, for readers of its events."""

import ctypes.util
import os
import random
import sys

from dsv4_process import free_port
from server_process import Server

NUM_REQUESTS = int(os.environ.get("DSV4_KV_REQUESTS", "400"))
BLOCK = 16
TOPIC = "kv@pod-1:8000@tiny"


def needs_zeromq():
    """Ends a program as skipped where the server could not publish."""
    if ctypes.util.find_library("zmq") is None:
        print("skipped: libzmq5 is not installed")
        sys.exit(77)


def publishing(*options):
    """A server that publishes its events, and where: (server, endpoint, endpoint of replays)."""
    endpoint, replay = f"tcp://127.0.0.1:{free_port()}", f"tcp://127.0.0.1:{free_port()}"
    return Server("--kv-events", endpoint, "--kv-events-replay", replay, "--kv-events-topic", TOPIC, "--kv-block-tokens", BLOCK,
                  "--metric-names", "both", *options), endpoint, replay


# Few states fit, so that most requests take the place of another's.
EVICTING = ("--prefix-cache-mib", 16, "--prefix-cache-every", 64, "--max-sequences", 4)


def load(server, compare, every=50):
    """NUM_REQUESTS prompts that share beginnings; compare() after each `every` of them and at the end. The prompts."""
    chance, stems = random.Random(7), [[100 + stem] * 40 for stem in range(6)]
    prompts = []
    for number in range(NUM_REQUESTS):
        prompt = [*chance.choice(stems)[:chance.randrange(17, 41)], *(chance.randrange(5, 900) for _ in range(chance.randrange(0, 90)))]
        if prompts and chance.random() < 0.3:
            prompt = [*chance.choice(prompts[-20:]), *prompt[:30]]
        prompts.append(prompt[:400])
        server.post("/v1/completions", {"prompt": prompts[-1], "max_tokens": chance.randrange(1, 4), "temperature": 0})
        if number % every == every - 1:
            compare()
    compare()
    evicted = server.metric("dsv4_prefix_cache_evictions_total")
    if evicted <= NUM_REQUESTS / 4:
        raise AssertionError(f"{evicted} states evicted by {NUM_REQUESTS} requests")
    return prompts


def blocks(server):
    """What the server says it keeps: the number of the next message, and the hashes."""
    table = server.request("GET", "/kv_blocks")[2]
    if table["block_size"] != BLOCK:
        raise AssertionError(table["block_size"])
    return table["next_number"], table["hashes"]
