# pip: --no-deps vllm==0.33.0 msgspec==0.22.0 pyzmq==27.3.0
"""vLLM's own structures of KV events: what they decode adds up to the server's table, through evictions and replays.

DSV4_VLLM names a folder that has another release's `vllm`, for its form of events. Of the package only kv_events.py is run: the rest wants a GPU's libraries.
"""

import importlib.util
import logging
import os
import pathlib
import sys
import types

from kv_events_test import Reader
from kv_testing import EVICTING, NUM_REQUESTS, TOPIC, blocks, load, publishing


def kv_events():
    """vLLM's vllm/distributed/kv_events.py, with stand-ins for what it imports of vLLM and does not need to decode."""
    folder = pathlib.Path(os.environ["DSV4_VLLM"], "vllm") if "DSV4_VLLM" in os.environ else pathlib.Path(importlib.util.find_spec("vllm").origin).parent
    names = {"vllm.config.kv_events": {"KVEventsConfig": object}, "vllm.logger": {"init_logger": logging.getLogger},
             "vllm.utils.network_utils": dict.fromkeys(("get_ip", "get_tcp_uri", "is_valid_ipv6_address", "split_zmq_path")),
             "vllm.v1.core.kv_cache_utils": {"ExternalBlockHash": bytes | int}}
    for name, members in names.items():
        while name:
            sys.modules.setdefault(name, types.ModuleType(name)).__dict__.update(members)
            name, members = name.rpartition(".")[0], {}
    spec = importlib.util.spec_from_file_location("vllm_kv_events", folder / "distributed" / "kv_events.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main():
    events = kv_events()
    form = "arrays" if events.KVCacheEvent.__struct_config__.array_like else "maps"
    server, *endpoints = publishing("--kv-events-form", form, *EVICTING)
    reader = Reader(*endpoints, TOPIC.encode(), form, events.KVEventBatch)
    compared = []

    def compare():
        next_number, hashes = blocks(server)
        reader.read(next_number)
        assert sorted(reader.texts) == hashes, (len(reader.texts), len(hashes))
        compared.append(len(hashes))
    with server:
        load(server, compare)
        late = Reader(*endpoints, TOPIC.encode(), form, events.KVEventBatch)
        next_number = blocks(server)[0]
        if next_number <= 10000:  # What replays hold.
            late.read(next_number)
            assert late.texts == reader.texts
        late.close()
    reader.close()
    print(f"{NUM_REQUESTS} requests, {form}: {reader.counts}, {len(compared)} comparisons of up to {max(compared)} blocks")


main()
