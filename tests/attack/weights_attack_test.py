"""States that were kept by one model, offered to another whose files differ: none is used, whichever byte it is."""

import json
import os
import pathlib
import shutil
import struct
import tempfile
import time
import unittest

from attack_testing import CHAT, dice, sized

from dsv4_process import TINY, wait_until
from server_process import Server

NUM_CHANGED = int(os.environ.get("DSV4_CHANGED_CHECKPOINTS", sized(4, 200)))
PROMPTS = [f"Tell me of the {word}. " + f"Of what else do the {word} speak? " * 20 for word in ("bee", "ship", "night")]


class OtherWeights(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.TemporaryDirectory()
        self.addCleanup(self.root.cleanup)
        self.model = pathlib.Path(self.root.name) / "model"
        self.cache = pathlib.Path(self.root.name) / "cache"
        shutil.copytree(TINY, self.model, copy_function=shutil.copy2)
        self.file = self.model / "model.safetensors"
        data = self.file.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + size])
        self.places = {name: (8 + size + entry["data_offsets"][0], 8 + size + entry["data_offsets"][1])
                       for name, entry in header.items() if name != "__metadata__"}

    def serve(self, *arguments):
        return Server("--context", 2048, "--max-sequences", 4, *arguments, model=self.model)

    @staticmethod
    def answers(server):
        return [server.post(CHAT, {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "thinking": False, "max_tokens": 12})
                ["choices"][0]["message"]["content"] for prompt in PROMPTS]

    def keep(self):
        with self.serve("--prefix-cache-dir", self.cache) as server:
            self.answers(server)
            wait_until(lambda: server.metric("dsv4_prefix_disk_written_total") >= len(PROMPTS), "states written")

    def read_with_cache(self):
        """How many states are read, and the answers."""
        with self.serve("--prefix-cache-dir", self.cache).with_states() as server:
            answers = self.answers(server)
            return server.metric("dsv4_prefix_disk_read_total"), answers

    def write(self, changes, keep_times):
        """Puts bytes at offsets; returns what was there."""
        before = self.file.stat()
        old = {}
        with open(self.file, "r+b") as file:
            for offset, data in changes.items():
                file.seek(offset)
                old[offset] = file.read(len(data))
                file.seek(offset)
                file.write(data)
        if keep_times:
            os.utime(self.file, ns=(before.st_atime_ns, before.st_mtime_ns))
        return old

    def changes(self):
        """Name and bytes of what a fine-tune, a repair or a disk may change."""
        data = self.file.read_bytes()
        doubled = {}
        for name, (begin, _) in self.places.items():
            if name.startswith("layers.2.") and name.endswith("weight_scale_2"):
                doubled[begin] = struct.pack("<f", 2 * struct.unpack("<f", data[begin:begin + 4])[0])
        yield "scales of layer 2 doubled", doubled
        first, second = self.places["layers.2.attn.wo_b.weight"], self.places["layers.4.attn.wo_b.weight"]
        yield "wo_b of two layers exchanged", {first[0]: data[second[0]:second[1]], second[0]: data[first[0]:first[1]]}
        random = dice("weights")
        names = sorted(self.places)
        for name in random.sample(names, min(NUM_CHANGED, len(names))) + random.choices(names, k=max(0, NUM_CHANGED - len(names))):
            begin, end = self.places[name]
            offset = random.randrange(begin, end)
            yield f"a bit of {name}", {offset: bytes([data[offset] ^ 1 << random.randrange(8)])}

    def test_no_state_of_other_weights_is_read(self):
        self.keep()
        read, known = self.read_with_cache()
        self.assertEqual(read, len(PROMPTS))
        tried = 0
        for number, (what, change) in enumerate(list(self.changes())):
            with self.subTest(what=what):
                old = self.write(change, keep_times=number % 2 == 0)
                try:
                    read, answers = self.read_with_cache()
                except AssertionError as error:  # Refused when it is loaded, or with a logit that is no number.
                    self.assertRegex(str(error), rf"{self.model}|logit of token \d+ is NaN")
                else:
                    self.assertEqual(read, 0)
                    with self.serve("--prefix-cache-mib", 0) as server:
                        self.assertEqual(answers, self.answers(server))
                    tried += 1
                finally:
                    self.write(old, keep_times=number % 2 == 0)
        print(f"{number + 1} changed checkpoints, {number + 1 - tried} refused by name, 0 states read, 0 wrong answers")
        self.assertGreaterEqual(tried, 2)
        # The first weights find theirs again, whatever the times say.
        self.assertEqual(self.read_with_cache(), (len(PROMPTS), known))

    def test_no_state_of_another_configuration_is_read(self):
        self.keep()
        path = self.model / "config.json"
        config = json.loads(path.read_text())
        for key, value in (("rms_norm_eps", 2e-6), ("rope_theta", 20000), ("routed_scaling_factor", 1.0), ("sliding_window", 64), ("hc_sinkhorn_iters", 9)):
            with self.subTest(key=key):
                self.assertNotEqual(config[key], value)
                path.write_text(json.dumps({**config, key: value}))
                self.assertEqual(self.read_with_cache()[0], 0)
        path.write_text(json.dumps({**config, "a_note": "of no number"}))
        self.assertEqual(self.read_with_cache()[0], len(PROMPTS))

    def test_a_change_under_the_server_ends_reading_and_writing(self):
        self.keep()
        files = sorted((self.cache / "states").iterdir())
        name = "layers.2.attn.wo_b.weight"
        with self.serve("--prefix-cache-dir", self.cache, "--prefix-cache-mib", 1).with_states() as server:
            time.sleep(0.05)  # A file system's clock has ticks.
            begin, end = self.places[name]
            self.write({begin: bytes(end - begin)}, keep_times=True)
            self.answers(server)
            server.post(CHAT, {"messages": [{"role": "user", "content": "A new one. " * 80}], "temperature": 0, "max_tokens": 4})
            wait_until(lambda: server.metric("dsv4_prefix_disk_ready") == 0, "the disk given up")
            self.assertEqual(server.metric("dsv4_prefix_disk_states"), 0)
            self.assertEqual(server.metric("dsv4_prefix_disk_read_total"), 0)
            self.assertEqual(server.metric("dsv4_prefix_disk_written_total"), 0)
        log = "".join(server.log)
        self.assertEqual(log.count("was changed after it was opened"), 1, log)
        self.assertIn("no state is kept or reused until the next start", log)
        self.assertEqual(sorted((self.cache / "states").iterdir()), files)

    def test_a_change_under_the_server_ends_reuse_in_memory(self):
        def cached(server):
            return [server.post(CHAT, {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "thinking": False, "max_tokens": 4})
                    ["usage"]["prompt_tokens_details"]["cached_tokens"] for prompt in PROMPTS]

        before = self.file.read_bytes()
        for what, change in (("bytes", lambda: self.write({self.places["layers.2.attn.wo_b.weight"][0]: bytes(64)}, keep_times=True)),
                             ("only times", lambda: os.utime(self.file))):
            with self.subTest(what=what), self.serve() as server:
                cached(server)
                self.assertTrue(all(cached(server)))
                time.sleep(0.05)  # A file system's clock has ticks.
                change()
                self.assertEqual(cached(server), [0] * len(PROMPTS))  # The first request too.
                self.assertEqual(cached(server), [0] * len(PROMPTS))
                self.assertEqual(server.metric("dsv4_prefix_cache_states"), 0)
            log = "".join(server.log)
            self.assertEqual(log.count("was changed after it was opened"), 1, log)
            self.assertIn("prefix cache: DATA_LOSS", log)
            self.file.write_bytes(before)
        # A file that was replaced under its name: the server still has the old one, whose states are right.
        with self.serve() as server:
            cached(server)
            other = self.file.with_suffix(".new")
            other.write_bytes(before)
            os.replace(other, self.file)
            self.assertTrue(all(cached(server)))
        self.assertNotIn("was changed", "".join(server.log))


if __name__ == "__main__":
    unittest.main()
