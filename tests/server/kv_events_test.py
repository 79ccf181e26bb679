"""KV events: a reader that has nothing but the published messages knows every block that the server keeps."""

import itertools
import sys
import time
import unittest

from dsv4_process import PATIENCE, rerun_in_venv, wait_until
from kv_testing import BLOCK, EVICTING, NUM_REQUESTS, TOPIC, blocks, load, needs_zeromq, publishing
from server_process import Server

try:
    import msgspec
    import zmq
except ImportError:
    rerun_in_venv("tests/server/requirements.txt")
needs_zeromq()

END = (1 << 64) - 1


def protocol(array_like):
    """The protocol's structures, as its readers declare them. A batch is an array; events are arrays, and since vLLM 0.24 maps."""
    class Event(msgspec.Struct, array_like=array_like, tag=True):
        pass

    class BlockStored(Event):
        block_hashes: list[int | bytes]
        parent_block_hash: int | bytes | None
        token_ids: list[int]
        block_size: int
        lora_id: int | None
        medium: str | None
        lora_name: str | None

    class BlockRemoved(Event):
        block_hashes: list[int | bytes]
        medium: str | None

    class AllBlocksCleared(Event):
        pass

    class Batch(msgspec.Struct, array_like=True):
        ts: float
        events: list[BlockStored | BlockRemoved | AllBlocksCleared]
        data_parallel_rank: int | None = None
    return Batch


class Reader:
    """A router's index of one server."""

    def __init__(self, events, replay, topic=b"", form="maps", batch=None):
        self.context = zmq.Context()
        self.subscription, self.replays = self.context.socket(zmq.SUB), self.context.socket(zmq.DEALER)
        self.subscription.connect(events)
        self.subscription.subscribe(topic)
        self.replays.connect(replay)
        self.decoder = msgspec.msgpack.Decoder(batch or protocol(form == "arrays"))
        self.replayed_parts = 2 if form == "arrays" else 3  # Without or with the topic.
        self.texts, self.expected, self.counts, self.topics = {}, 0, {"stored": 0, "removed": 0, "cleared": 0}, set()

    def close(self):
        self.context.destroy(linger=0)

    def apply(self, number, payload):
        if number < self.expected:
            return
        if number != self.expected:
            raise AssertionError(f"got batch {number}, wanted {self.expected}")
        self.expected += 1
        batch = self.decoder.decode(payload)
        if abs(batch.ts - time.time()) > 3600:
            raise AssertionError(f"a time of {batch.ts}")
        for event in batch.events:
            if type(event).__name__ == "AllBlocksCleared":
                self.texts.clear()
                self.counts["cleared"] += 1
            elif type(event).__name__ == "BlockRemoved":
                for each in event.block_hashes:
                    del self.texts[each]
                    self.counts["removed"] += 1
            else:
                if event.block_size != BLOCK or len(event.token_ids) != BLOCK * len(event.block_hashes):
                    raise AssertionError(event)
                text = () if event.parent_block_hash is None else self.texts[event.parent_block_hash]
                for index, each in enumerate(event.block_hashes):
                    text = (*text, *event.token_ids[index * BLOCK:(index + 1) * BLOCK])
                    if each in self.texts:
                        raise AssertionError(f"block {each} was stored twice")
                    self.texts[each] = text
                    self.counts["stored"] += 1

    def read(self, until):
        """Batches up to the one in front of the number `until`; those missed at the start are asked for."""
        end = time.monotonic() + PATIENCE
        while self.expected < until:
            if time.monotonic() > end:
                raise AssertionError(f"batch {self.expected} of {until} does not come")
            if not self.subscription.poll(200):
                self.catch_up()
                continue
            topic, number, payload = self.subscription.recv_multipart()
            self.topics.add(topic)
            number = int.from_bytes(number, "big")
            if number > self.expected:
                self.catch_up()
            self.apply(number, payload)

    def catch_up(self):
        self.replays.send_multipart([b"", self.expected.to_bytes(8, "big")])
        while True:
            if not self.replays.poll(int(1000 * PATIENCE)):
                raise AssertionError("no replay")
            empty, *parts = self.replays.recv_multipart()
            if empty or len(parts) != self.replayed_parts:
                raise AssertionError(parts)
            *topic, number, payload = parts
            number = int.from_bytes(number, "big")
            if number == END:
                if payload or any(topic):
                    raise AssertionError(parts)
                return
            self.topics.update(topic)
            self.apply(number, payload)


class KvEvents(unittest.TestCase):
    def server(self, *options, form="maps"):
        server, *endpoints = publishing("--kv-events-form", form, *options)
        self.addCleanup(server.__exit__)
        sources = server.request("GET", "/kv_event_sources")[2]
        self.assertEqual(sources, [{"data_parallel_rank": 0, "endpoint": endpoints[0], "replay_endpoint": endpoints[1], "topic": TOPIC}])
        reader = Reader(*endpoints, b"kv@", form)
        self.addCleanup(reader.close)
        return server, reader

    def compare(self, server, reader):
        next_number, hashes = blocks(server)
        reader.read(next_number)
        self.assertEqual(sorted(reader.texts), hashes)
        return len(hashes)

    def test_a_reader_of_arrays_knows_every_block_through_evictions(self):
        self.knows_every_block("arrays")

    def test_a_reader_of_maps_knows_every_block(self):
        self.knows_every_block("maps")

    def knows_every_block(self, form):
        server, reader = self.server(*EVICTING, form=form)
        load(server, lambda: self.compare(server, reader))
        self.assertGreater(len(reader.texts), 10)
        self.assertGreater(reader.counts["removed"], reader.counts["stored"] / 4)
        print(f"{NUM_REQUESTS} requests, {form}: {reader.counts}, {server.metric('dsv4_prefix_cache_evictions_total'):.0f} states evicted", file=sys.stderr)
        # A router finds by tokens what the server reuses.
        longest = max(reader.texts.values(), key=len)
        reply = server.post("/v1/completions", {"prompt": [*longest, 5], "max_tokens": 1})
        self.assertGreaterEqual(reply["usage"]["prompt_tokens_details"]["cached_tokens"], 1)
        self.assertEqual(server.request("POST", "/flush_cache")[0], 200)
        wait_until(lambda: server.request("GET", "/kv_blocks")[2]["hashes"] == [], "the cache is empty")
        self.assertEqual(self.compare(server, reader), 0)
        self.assertEqual((reader.counts["cleared"], reader.topics), (2, {TOPIC.encode()}))

    def test_a_late_reader_asks_for_what_it_missed(self):
        for form in ("maps", "arrays"):
            with self.subTest(form=form):
                self.asks_for_what_it_missed(form)

    def asks_for_what_it_missed(self, form):
        server, early = self.server(form=form)
        for number in range(20):
            server.post("/v1/completions", {"prompt": list(range(5 + number, 60 + number)), "max_tokens": 1})
        self.compare(server, early)
        late = Reader(*(each for each in server.request("GET", "/kv_event_sources")[2][0].values() if str(each).startswith("tcp:")), form=form)
        self.addCleanup(late.close)
        self.compare(server, late)
        self.assertEqual(late.texts, early.texts)
        late.replays.send_multipart([b"", b"short"])  # Is logged and costs nothing.
        late.catch_up()

    def test_the_blocks_of_a_prompt_are_a_chain(self):
        server, reader = self.server()
        prompt = list(range(5, 5 + 5 * BLOCK + 3))
        server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1})
        self.assertGreaterEqual(self.compare(server, reader), 5)
        texts = sorted((text for text in reader.texts.values() if text == tuple(prompt[:len(text)])), key=len)
        self.assertEqual([len(text) for text in texts], [BLOCK * number for number in range(1, 6)])
        for shorter, longer in itertools.pairwise(texts):
            self.assertEqual(longer[:len(shorter)], shorter)

    def test_what_cannot_be_is_said(self):
        with self.assertRaisesRegex(AssertionError, "cannot listen there"):
            Server("--kv-events", "nowhere://x")
        with Server() as server:
            for path in ("/kv_event_sources", "/kv_blocks"):
                status, _, reply = server.request("GET", path)
                self.assertEqual(status, 404)
                self.assertIn("--kv-events", reply["error"]["message"])


if __name__ == "__main__":
    unittest.main()
