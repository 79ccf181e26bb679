"""One server reads prompts and another answers them, over shared states: the answers are one server's, whatever the router's protocol."""

import json
import os
import pathlib
import random
import tempfile
import threading
import unittest

from dsv4_process import TINY, dsv4
from server_process import Server

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ANSWERS = int(os.environ.get("DSV4_TEST_ANSWERS", "100"))
# Kinds of a stream's events that name the answer or the moment.
MOMENTS = ("id", "created", "created_at", "completed_at", "item_id", "response_id", "kv_transfer_params", "usage", "system_fingerprint", "signature")


def without_moments(value):
    if isinstance(value, dict):
        return {name: without_moments(member) for name, member in value.items() if name not in MOMENTS}
    return [without_moments(item) for item in value] if isinstance(value, list) else value


def same(raw):
    """Content of a reply, byte for byte but for the fields that differ from one request to the next."""
    if raw.startswith(b"{"):
        return json.dumps(without_moments(json.loads(raw)))
    lines = []  # Events of several choices come in any order: each choice has its own.
    for line in raw.decode().splitlines():
        event = json.loads(line[6:]) if line.startswith("data: {") else {}
        if line.startswith(":") or line == "event: ping" or event.get("type") == "ping":  # Nothing else came for a while.
            continue
        if event.get("choices") == [] and "kv_transfer_params" in event:
            continue
        choice = event["choices"][0]["index"] if event.get("choices") else 0
        lines.append((choice, json.dumps(without_moments(event)) if event else line))
    return "\n".join(line for _, line in sorted(lines, key=lambda entry: entry[0]) if line)


class SplitPrefill(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        root = tempfile.TemporaryDirectory()
        cls.addClassCleanup(root.cleanup)
        cls.cache = pathlib.Path(root.name) / "cache"
        cls.reader = cls.enterClassContext(cls.serve("prefill"))
        cls.answerer = cls.enterClassContext(cls.serve("decode"))
        cls.alone = cls.enterClassContext(Server("--context", 4096, "--prefix-cache-mib", 0))

    @classmethod
    def serve(cls, role, *arguments):
        return Server("--prefix-cache-dir", cls.cache, "--max-sequences", 8, "--context", 4096, "--role", role, *arguments).with_states()

    @staticmethod
    def raw(server, path, body):
        connection = server.connect()
        try:
            connection.request("POST", path, json.dumps(body))
            response = connection.getresponse()
            raw = response.read()
            if response.status != 200:
                raise AssertionError(f"{response.status}: {raw.decode()}")
            return raw
        finally:
            connection.close()

    @staticmethod
    def words(dice, count):
        return " ".join(dice.choice(("red", "house", "river", "seven", "Paris", "blue", "stone", "walks")) for _ in range(count))

    def by_parameters(self, path, body):
        """The router hands kv_transfer_params from the one that reads to the one that answers."""
        first = json.loads(self.raw(self.reader, path, {**body, "max_tokens": 1, "stream": False, "kv_transfer_params":
                                                        {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None}}))
        parameters = first["kv_transfer_params"]
        self.assertTrue(parameters["do_remote_prefill"], first)
        self.assertGreaterEqual(parameters["remote_num_tokens"], first["usage"]["prompt_tokens"] - 64)
        return self.raw(self.answerer, path, {**body, "kv_transfer_params": parameters})

    def by_threshold(self, path, body):
        """The router tries to have it answered, and has it read first where too little of it is there."""
        tried = self.raw(self.answerer, path, {**body, "cache_hit_threshold": 0.9})
        if b'"finish_reason":"cache_threshold"' not in tried:
            return tried
        self.raw(self.reader, path, {**body, "max_tokens": 1, "cache_hit_threshold": 0})
        return self.raw(self.answerer, path, {**body, "cache_hit_threshold": 0})

    def by_role(self, path, body):
        """Dialects that no router has parameters for: the roles alone."""
        limit = "max_output_tokens" if path.endswith("responses") else "max_tokens"
        self.raw(self.reader, path, {**body, limit: 1})
        return self.raw(self.answerer, path, body)

    def test_answers_are_one_servers(self):
        dice = random.Random(11)
        jobs = []
        for number in range(ANSWERS):
            text = f"Text {number}: {self.words(dice, dice.randrange(70, 200))}. What does it say?"
            common = {"temperature": dice.choice((0, 0.8)), "seed": number, "stream": dice.random() < 0.5}
            messages = [{"role": "user", "content": text}]
            chat = {"messages": messages, "max_tokens": 12, "thinking": dice.random() < 0.5, **common}
            kind = number % 10
            if kind < 4:
                jobs.append((CHAT, chat, self.by_parameters if kind % 2 else self.by_threshold))
            elif kind < 7:
                jobs.append((TEXT, {"prompt": text, "max_tokens": 12, "n": 1 + number % 2, **common}, self.by_parameters if kind % 2 else self.by_threshold))
            elif kind == 7:
                jobs.append(("/v1/messages", {"messages": messages, "max_tokens": 12, **common}, self.by_role))
            elif kind == 8:
                jobs.append(("/v1/responses", {"input": text, "max_output_tokens": 12, "store": False, **common}, self.by_role))
            else:
                jobs.append((CHAT, {**chat, "logprobs": True, "top_logprobs": 3}, self.by_parameters))
        wrong, lock = [], threading.Lock()

        def states():
            return [self.answerer.metric(f"dsv4_split_states_{name}_total") for name in ("met", "missing")]
        before = states()
        rest = iter(jobs)

        def work():
            while True:
                with lock:
                    job = next(rest, None)
                if job is None:
                    return
                path, body, split = job
                try:
                    split_answer, alone = same(split(path, {"model": "tiny", **body})), same(self.raw(self.alone, path, {"model": "tiny", **body}))
                except Exception as error:  # noqa: BLE001 (said below, with the request)
                    split_answer, alone = str(error), ""
                if split_answer != alone:
                    wrong.append((path, body, split_answer, alone))
        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong[:2], [], f"{len(wrong)} of {len(jobs)} answers differ")
        met, missing = (now - then for now, then in zip(states(), before, strict=True))
        self.assertEqual(self.reader.metric("dsv4_split_not_published_total"), 0)
        self.assertGreater(self.answerer.metric("dsv4_cache_threshold_total"), 0)
        self.assertEqual(missing, 0)
        self.assertGreaterEqual(met, ANSWERS)
        self.assertEqual(self.answerer.metric("dsv4_prefix_disk_rejected_total"), 0)
        print(f"{len(jobs)} answers of two servers, each one server's; {met:.0f} states met, {missing:.0f} missing")

    def test_the_end_of_an_answer_waits_for_the_file(self):
        text = "Once more: " + self.words(random.Random(3), 120)
        raw = self.raw(self.reader, CHAT, {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 1, "stream": True,
                                           "kv_transfer_params": {"do_remote_decode": True}})
        self.assertIn(b'"do_remote_prefill":true', raw)
        self.assertLess(raw.index(b'"finish_reason":"length"'), raw.index(b"kv_transfer_params"))
        cached = json.loads(self.raw(self.answerer, CHAT, {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 1}))["usage"]
        self.assertEqual(cached["prompt_tokens_details"]["cached_tokens"], cached["prompt_tokens"] - 1)

    def test_short_prompts_are_read_by_both(self):
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "temperature": 0}
        first = json.loads(self.raw(self.reader, CHAT, {**body, "kv_transfer_params": {"do_remote_decode": True}}))
        self.assertEqual((first["kv_transfer_params"]["do_remote_prefill"], first["kv_transfer_params"]["remote_num_tokens"]), (False, 0))
        split = self.raw(self.answerer, CHAT, {**body, "max_tokens": 9, "kv_transfer_params": first["kv_transfer_params"]})
        self.assertEqual(same(split), same(self.raw(self.alone, CHAT, {**body, "max_tokens": 9})))

    def test_a_threshold_by_itself(self):
        messages = [{"role": "user", "content": "A threshold: " + self.words(random.Random(4), 150)}]
        body = {"model": "tiny", "messages": messages, "max_tokens": 4, "temperature": 0}
        for path, more in ((CHAT, {}), (CHAT, {"stream": True}), (TEXT, {})):
            request = {**body, **more} if path == CHAT else {"model": "tiny", "prompt": messages[0]["content"], "max_tokens": 4}
            raw = self.raw(self.answerer, path, {**request, "cache_hit_threshold": 1})
            self.assertIn(b'"finish_reason":"cache_threshold"', raw)
            self.assertNotIn(b'"completion_tokens":1', raw)
        self.assertIn(b'"finish_reason":"length"', self.raw(self.answerer, CHAT, {**body, "cache_hit_threshold": 0}))
        self.assertIn(b'"finish_reason":"length"', self.raw(self.answerer, CHAT, {**body, "cache_hit_threshold": 1}))

    def test_what_cannot_be_is_refused(self):
        def refusal(server, path=CHAT, **fields):
            body = {"model": "tiny", "max_tokens": 1, **({"prompt": "a"} if path == TEXT else {"messages": [{"role": "user", "content": "a"}]}), **fields}
            connection = server.connect()
            connection.request("POST", path, json.dumps(body))
            response = connection.getresponse()
            text = response.read().decode()
            connection.close()
            self.assertEqual(response.status, 400, text)
            return text
        read, answer = {"do_remote_decode": True}, {"do_remote_prefill": True}
        self.assertIn("--role decode", refusal(self.answerer, kv_transfer_params=read))
        self.assertIn("--role prefill", refusal(self.reader, kv_transfer_params=answer))
        self.assertIn("--prefix-cache-dir", refusal(self.alone, kv_transfer_params=read))
        self.assertIn("--prefix-cache-dir", refusal(self.alone, TEXT, kv_transfer_params=answer))
        self.assertIn("wanted one of them", refusal(self.alone, kv_transfer_params={**read, **answer}))
        self.assertIn("kv_transfer_params.do_remote_decode", refusal(self.reader, kv_transfer_params={"do_remote_decode": "yes"}))
        for part in (-0.1, 1.5, "much"):
            self.assertIn("cache_hit_threshold", refusal(self.answerer, cache_hit_threshold=part))
        self.assertIn("kv_transfer_params", refusal(self.reader, "/v1/messages", kv_transfer_params=read))
        self.assertEqual(dsv4("serve", "-m", TINY, "--role", "prefill").returncode, 2)
        self.assertEqual(dsv4("serve", "-m", TINY, "--role", "both ends", "--prefix-cache-dir", self.cache).returncode, 2)

    def test_a_disk_that_went_away_costs_reuse(self):
        cache = self.cache.parent / "goes"
        with Server("--prefix-cache-dir", cache, "--context", 4096, "--role", "prefill") as reader, \
                Server("--prefix-cache-dir", cache, "--context", 4096, "--role", "decode") as answerer:
            cache.rename(self.cache.parent / "gone")
            body = {"model": "tiny", "messages": [{"role": "user", "content": self.words(random.Random(5), 150)}], "max_tokens": 6, "temperature": 0}
            first = json.loads(self.raw(reader, CHAT, {**body, "kv_transfer_params": {"do_remote_decode": True}}))
            self.assertFalse(first["kv_transfer_params"]["do_remote_prefill"])
            self.assertEqual(same(self.raw(answerer, CHAT, body)), same(self.raw(self.alone, CHAT, body)))
            self.assertEqual(reader.metric("dsv4_split_not_published_total"), 1)
            self.assertEqual(answerer.metric("dsv4_split_states_missing_total"), 1)


if __name__ == "__main__":
    unittest.main()
