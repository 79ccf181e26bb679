"""`dsv4 serve --prefix-cache-dir`: what is kept outlives the process, however it ends, and never changes an answer."""

import http.client
import json
import pathlib
import random
import shutil
import tempfile
import threading
import time
import unittest

from dsv4_process import TINY, dsv4, wait_until
from server_process import Server

CHAT = "/v1/chat/completions"
ROUNDS = 8


def story(number, facts):
    return " ".join(f"Fact {number}.{i}: the {i}th house is painted blue." for i in range(facts))


def question(number, facts=12):
    return [{"role": "system", "content": story(number, facts)}, {"role": "user", "content": "What is the capital of France?"}]


class PrefixDisk(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.TemporaryDirectory()
        self.addCleanup(self.root.cleanup)
        self.cache = pathlib.Path(self.root.name) / "cache"

    def serve(self, *arguments):
        return Server("--prefix-cache-dir", self.cache, "--max-sequences", 8, "--context", 4096, *arguments).with_states()

    def files(self):
        return sorted((self.cache / "states").glob("*.state"))

    @staticmethod
    def ask(server, messages, headers=None, **fields):
        return server.post(CHAT, {"messages": messages, "temperature": 0, "thinking": False, "max_tokens": 24, **fields}, headers)

    @staticmethod
    def cached(reply):
        return reply["usage"]["prompt_tokens_details"]["cached_tokens"]

    @staticmethod
    def wait_for_files(server, count):
        wait_until(lambda: server.metric("dsv4_prefix_disk_written_total") >= count, f"{count} states written")

    def kill(self, server):
        server.process.kill()
        server.process.wait()

    def test_the_second_turn_after_a_restart(self):
        def first_token_seconds(server, messages, thinking):
            connection = server.connect()
            start = time.perf_counter()
            connection.request("POST", CHAT, json.dumps({"messages": messages, "temperature": 0, "stream": True, "thinking": thinking,
                                                         "stream_options": {"include_usage": True}}))
            seconds, text, usage = None, "", None
            for line in connection.getresponse():
                if line.startswith(b"data: {"):
                    chunk = json.loads(line[6:])
                    usage = chunk.get("usage") or usage
                    delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
                    text += delta.get("content") or ""
                    seconds = seconds or ((text or delta.get("reasoning_content")) and time.perf_counter() - start)
            connection.close()
            return seconds, text, usage
        for attempt, thinking in ((0, False), (1, True)):
            messages = question(attempt, 105)
            with self.serve() as server:
                cold, text, usage = first_token_seconds(server, messages, thinking)
                self.wait_for_files(server, 1)
                self.kill(server)
            second = [*messages, {"role": "assistant", "content": text}, {"role": "user", "content": "And of Spain?"}]
            with self.serve() as server:
                warm, answer, second_usage = first_token_seconds(server, second, thinking)
            with Server("--context", 4096) as server:
                self.assertEqual(answer, first_token_seconds(server, second, thinking)[1])
            self.assertGreater(usage["prompt_tokens"], 1900)
            # A thinking turn's prompt ends with a token that its next turn has not.
            self.assertGreaterEqual(second_usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"] - 2)
            print(f"first token of the second turn after kill -9 and a restart: {100 * warm / cold:.1f} % of the first turn's time")

    def test_kill_at_any_moment(self):
        prompts = [question(number, 8 + 3 * (number % 5)) for number in range(16)]
        with Server("--context", 4096) as server:
            expected = [self.ask(server, prompt)["choices"][0]["message"]["content"] for prompt in prompts]
        with self.serve("--prefix-cache-disk-mib", 4) as server:  # So that there is something to read, however soon the kills come.
            self.ask(server, prompts[0])
            self.wait_for_files(server, 1)
        dice = random.Random(5)
        wrong, hits = [], 0
        for _ in range(ROUNDS):
            with self.serve("--prefix-cache-disk-mib", 4) as server:
                self.assertEqual(self.ask(server, prompts[0])["choices"][0]["message"]["content"], expected[0])
                self.assertEqual(server.metric("dsv4_prefix_disk_rejected_total"), 0)  # What a kill leaves is whole or gone.

                def load(seed, server=server):
                    mine = random.Random(seed)
                    while True:
                        number = mine.randrange(len(prompts))
                        try:
                            text = self.ask(server, prompts[number])["choices"][0]["message"]["content"]
                        except (OSError, ValueError, http.client.HTTPException):  # The server was killed.
                            return
                        if text != expected[number]:
                            wrong.append((number, text))
                clients = [threading.Thread(target=load, args=(dice.random(),)) for _ in range(4)]
                for client in clients:
                    client.start()
                time.sleep(dice.uniform(0.05, 1.0))
                hits += server.metric("dsv4_prefix_disk_read_total")
                self.kill(server)
                for client in clients:
                    client.join()
            self.assertEqual(wrong, [])
        self.assertGreater(hits, 0)
        self.assertLessEqual(sum(file.stat().st_size for file in self.files()), 4 << 20)

    def test_damaged_files_change_no_answer(self):
        prompts = [question(number) for number in range(6)]
        with self.serve() as server:
            expected = [self.ask(server, prompt)["choices"][0]["message"] for prompt in prompts]
            self.wait_for_files(server, 6)
        files = self.files()
        self.assertGreaterEqual(len(files), 6)
        for i, file in enumerate(files):
            data = bytearray(file.read_bytes())
            if i % 3 == 0:
                data[len(data) // 2] ^= 1
            elif i % 3 == 1:
                data = data[:len(data) // 2]
            else:
                data = bytearray(random.Random(i).randbytes(len(data)))
            file.write_bytes(data)
        (self.cache / "states" / "notes.txt").write_text("mine")
        for attempt in range(2):
            with self.serve() as server:
                replies = [self.ask(server, prompt) for prompt in prompts]
                self.assertEqual([reply["choices"][0]["message"] for reply in replies], expected)
                self.assertEqual([self.cached(reply) for reply in replies] == [0] * 6, attempt == 0)
                self.assertEqual(server.metric("dsv4_prefix_disk_rejected_total"), len(files) if attempt == 0 else 0)
                for file in files:
                    self.assertLessEqual(sum(file.name in line for line in server.log), 2)
                self.wait_for_files(server, 6 if attempt == 0 else 0)
        self.assertEqual((self.cache / "states" / "notes.txt").read_text(), "mine")

    def test_keys_and_salts_stay_apart_across_a_restart(self):
        keys = ("--api-key", "first", "--api-key", "second", "--open-metrics")

        def header(key):
            return {"Authorization": f"Bearer {key}"}
        with self.serve(*keys) as server:
            self.ask(server, question(1), header("first"))
            self.ask(server, question(1), header("first"), cache_salt="mine")
            wait_until(lambda: len(self.files()) >= 2, "two states written")
            self.kill(server)
        with self.serve(*keys) as server:
            self.assertEqual(self.cached(self.ask(server, question(1), header("second"))), 0)
            self.assertEqual(self.cached(self.ask(server, question(1), header("first"), cache_salt="yours")), 0)
            self.assertGreater(self.cached(self.ask(server, question(1), header("first"))), 100)
            self.assertGreater(self.cached(self.ask(server, question(1), header("first"), cache_salt="mine")), 100)

    def test_other_numerics_do_not_use_it(self):
        with self.serve() as server:
            self.ask(server, question(1))
            self.wait_for_files(server, 1)
        with self.serve("--numerics", "plain") as server:
            self.assertEqual(self.cached(self.ask(server, question(1))), 0)
        with self.serve() as server:
            self.assertGreater(self.cached(self.ask(server, question(1))), 100)

    def test_a_full_or_broken_disk_costs_only_reuse(self):
        with self.serve() as server:
            first = self.ask(server, question(1))["choices"][0]["message"]
            self.wait_for_files(server, 1)
            shutil.rmtree(self.cache)
            self.ask(server, question(2))
            self.assertEqual(self.ask(server, question(1))["choices"][0]["message"], first)
            wait_until(lambda: server.metric("dsv4_prefix_disk_dropped_total") > 0, "what cannot be written is given up")

    def test_what_cannot_work_is_said_at_the_start(self):
        self.assertEqual(dsv4("serve", "-m", TINY, "--prefix-cache-disk-mib", 5).returncode, 2)
        self.assertEqual(dsv4("serve", "-m", TINY, "--prefix-cache-dir", self.cache, "--prefix-cache-mib", 0).returncode, 2)
        file = pathlib.Path(self.root.name) / "file"
        file.write_text("")
        process = dsv4("serve", "-m", TINY, "--prefix-cache-dir", file)
        self.assertEqual(process.returncode, 1)
        self.assertIn("--prefix-cache-dir", process.stderr)


if __name__ == "__main__":
    unittest.main()
