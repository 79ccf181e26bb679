"""Several `dsv4 serve` with one --prefix-cache-dir: what one has read no other reads again, and no kill makes a wrong answer."""

import http.client
import os
import pathlib
import random
import tempfile
import threading
import time
import unittest

from dsv4_process import wait_until
from server_process import Server

CHAT = "/v1/chat/completions"
KILLS = int(os.environ.get("DSV4_TEST_KILLS", "6"))


def question(number, facts=12):
    text = " ".join(f"Fact {number}.{i}: the {i}th house is painted blue." for i in range(facts))
    return [{"role": "system", "content": text}, {"role": "user", "content": "What is the capital of France?"}]


class SharedStates(unittest.TestCase):
    def setUp(self):
        root = tempfile.TemporaryDirectory()
        self.addCleanup(root.cleanup)
        self.cache = pathlib.Path(root.name) / "cache"

    def serve(self, *arguments):
        return Server("--prefix-cache-dir", self.cache, "--max-sequences", 8, "--context", 4096, *arguments).with_states()

    @staticmethod
    def ask(server, messages, headers=None, **fields):
        reply = server.post(CHAT, {"messages": messages, "temperature": 0, "thinking": False, "max_tokens": 24, **fields}, headers)
        return reply["choices"][0]["message"]["content"], reply["usage"]["prompt_tokens_details"]["cached_tokens"]

    def let_write(self):
        """Until no file has come for a while: states are written behind the answer."""
        def names():
            return sorted((self.cache / "states").iterdir())
        before = None
        while before != (before := names()):
            time.sleep(0.4)

    def test_hits_are_those_of_one_server(self):
        """A conversation's turns, and questions about one long text, go to three replicas in turn."""
        def turns(servers):
            said = []
            for number in range(3):
                messages = question(number)
                for turn in range(4):
                    server = servers[turn % len(servers)]
                    answer, cached = self.ask(server, messages, max_tokens=90)
                    said.append((answer, cached))
                    self.let_write()
                    messages = [*messages, {"role": "assistant", "content": answer}, {"role": "user", "content": question(number + 10 * turn)[0]["content"]}]
            return said
        with self.serve() as one:
            alone = turns([one])
        self.cache = self.cache.parent / "second"
        with self.serve() as a, self.serve() as b, self.serve() as c:
            shared = turns([a, b, c])
            read = sum(server.metric("dsv4_prefix_disk_read_of_others_total") for server in (a, b, c))
            rejected = sum(server.metric("dsv4_prefix_disk_rejected_total") for server in (a, b, c))
        self.assertEqual([answer for answer, _ in shared], [answer for answer, _ in alone])
        for (_, cached), (_, cached_alone) in zip(shared, alone, strict=True):
            self.assertGreaterEqual(cached, cached_alone - 64)  # Less than what a file is worth is read anew.
        self.assertGreaterEqual(read, 9)
        self.assertEqual(rejected, 0)

    def test_keys_and_models_stay_apart(self):
        keys = ("--api-key", "first", "--api-key", "second", "--open-metrics")

        def header(key):
            return {"Authorization": f"Bearer {key}"}
        with self.serve(*keys) as a, self.serve(*keys) as b, self.serve(*keys, "--numerics", "plain") as other:
            self.ask(a, question(1), header("first"))
            wait_until(lambda: a.metric("dsv4_prefix_disk_written_total") >= 1, "a state written")
            self.assertEqual(self.ask(b, question(1), header("second"))[1], 0)
            self.assertEqual(self.ask(other, question(1), header("first"))[1], 0)
            self.assertGreater(self.ask(b, question(1), header("first"))[1], 100)

    def test_the_bytes_hold_for_all(self):
        with self.serve("--prefix-cache-disk-mib", 4) as a, self.serve("--prefix-cache-disk-mib", 4) as b:
            for number in range(12):
                self.ask(a, question(number, 30))
                self.ask(b, question(100 + number, 30))
                self.assertLessEqual(sum(file.stat().st_size for file in list((self.cache / "states").iterdir()) if file.exists()), (4 << 20) + (2 << 20))
            wait_until(lambda: a.metric("dsv4_prefix_disk_evictions_total") + b.metric("dsv4_prefix_disk_evictions_total") > 0, "files that gave way")
        self.assertLessEqual(sum(file.stat().st_size for file in (self.cache / "states").iterdir()), 4 << 20)

    def test_a_killed_replica_changes_no_answer(self):
        prompts = [question(number, 8 + 3 * (number % 5)) for number in range(16)]
        with Server("--context", 4096) as server:
            expected = [self.ask(server, prompt)[0] for prompt in prompts]
        dice = random.Random(5)
        wrong = []
        with self.serve() as survivor:
            for turn in range(KILLS):
                with self.serve() as victim:
                    first = self.ask(victim, question(100 + turn))[0]
                    self.let_write()
                    def load(seed, server=victim):
                        mine = random.Random(seed)
                        while True:
                            number = mine.randrange(len(prompts))
                            try:
                                text = self.ask(server, prompts[number])[0]
                            except (OSError, ValueError, http.client.HTTPException):  # The server was killed.
                                return
                            if text != expected[number]:
                                wrong.append((number, text))
                    clients = [threading.Thread(target=load, args=(dice.random(),)) for _ in range(3)]
                    for client in clients:
                        client.start()
                    for _ in range(dice.randrange(1, 6)):
                        number = dice.randrange(len(prompts))
                        self.assertEqual(self.ask(survivor, prompts[number])[0], expected[number])
                    victim.process.kill()
                    victim.process.wait()
                    for client in clients:
                        client.join()
                self.assertEqual(wrong, [])
                answer, cached = self.ask(survivor, question(100 + turn))
                self.assertEqual(answer, first)
                self.assertGreater(cached, 100)
            self.assertEqual(survivor.metric("dsv4_prefix_disk_rejected_total"), 0)
            self.assertGreaterEqual(survivor.metric("dsv4_prefix_disk_read_of_others_total"), KILLS)


if __name__ == "__main__":
    unittest.main()
