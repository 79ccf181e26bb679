"""Speculation over HTTP. A server that verifies drafts answers as one that does not, byte for byte. It says what its drafts were worth,
and leaves them out where a request says so."""

import re
import threading
import unittest

from server_process import Server
from server_testing import CHAT, FORMAT, QUESTION, STRICT, TICKET, TICKET_QUESTION

TEXT = "The red fox ran home. The blue bird flew home. "
QUOTES = [{"role": "user", "content": f"Repeat this: {TEXT * 3}"}]
REQUESTS = [
    (CHAT, {"messages": QUOTES, "temperature": 0, "max_tokens": 150}),
    (CHAT, {"messages": QUOTES, "temperature": 1, "seed": 5, "max_tokens": 150, "n": 3}),
    (CHAT, {"messages": QUOTES, "temperature": 0.7, "seed": 6, "max_tokens": 120, "frequency_penalty": 0.5}),
    (CHAT, {"messages": QUOTES, "temperature": 0, "max_tokens": 120, "repetition_penalty": 1.2, "logprobs": True, "top_logprobs": 3}),
    (CHAT, {"messages": QUESTION, "temperature": 0, "thinking": False, "stop": ["is"]}),
    (CHAT, {"messages": QUESTION, "temperature": 1, "seed": 2, "response_format": {"type": "json_schema", "json_schema": FORMAT}}),
    (CHAT, {"messages": TICKET_QUESTION, "tools": [TICKET], "temperature": 0, "thinking": False}),
    (CHAT, {"messages": TICKET_QUESTION, "tools": [{"type": "function", "function": STRICT}], "temperature": 1, "seed": 9}),
    ("/v1/completions", {"prompt": TEXT * 4, "temperature": 0, "max_tokens": 200, "stop": ["blue bird flew home. The red fox ran home. The blue bird flew away"]}),
    ("/v1/completions", {"prompt": TEXT * 4, "temperature": 0.5, "seed": 3, "max_tokens": 200}),
]


def answer(server, request, **more):
    path, fields = request
    reply = server.post(path, {**fields, **more})
    for choice in reply["choices"]:
        for call in choice.get("message", {}).get("tool_calls") or []:
            del call["id"]
    return reply["choices"], reply["usage"]["completion_tokens"]


class Speculation(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Server("--speculation", "off") as server:
            cls.wanted = [answer(server, request) for request in REQUESTS]
            cls.without = server.metric("dsv4_draft_tokens_total")

    def test_a_server_without_it_has_no_drafts(self):
        self.assertEqual(self.without, 0)

    def test_answers_are_those_of_a_server_without_it(self):
        for value in ("auto", "suffix:5", "mtp:3", "mtp", "dspark:5", "dspark"):
            with self.subTest(value=value), Server("--speculation", value) as server:
                for request, wanted in zip(REQUESTS, self.wanted):
                    with self.subTest(request=request):
                        self.assertEqual(answer(server, request), wanted)
                drafts = server.metric("dsv4_draft_tokens_total")
                if ":" not in value:  # How many drafts pay, if any, is up to the machine: a busy one may draft nothing.
                    continue
                self.assertGreater(drafts, 0)
                self.assertGreater(server.metric("dsv4_accepted_draft_tokens_total"), 0)
                self.assertLess(server.metric("dsv4_decode_steps_total"), server.metric("dsv4_output_tokens_total"))
                for request, wanted in zip(REQUESTS[:2], self.wanted):
                    self.assertEqual(answer(server, request, speculation="off"), wanted)
                self.assertEqual(server.metric("dsv4_draft_tokens_total"), drafts)
                self.assertEqual(answer(server, REQUESTS[0], speculation="auto"), self.wanted[0])
                self.assertGreater(server.metric("dsv4_draft_tokens_total"), drafts)

    def test_a_request_chooses_among_the_servers_drafters(self):
        """Drafts of one are counted as its own, by place; a request that wants another's is told so."""
        for value, others in (("mtp:3", ("dspark", "suffix")), ("dspark:5", ("mtp", "suffix"))):
            name, places = value.split(":")
            with self.subTest(value=value), Server("--speculation", value) as server:
                self.assertEqual(answer(server, REQUESTS[0], speculation="off"), self.wanted[0])
                self.assertEqual(server.metric("dsv4_draft_tokens_total"), 0)
                self.assertEqual(answer(server, REQUESTS[1], speculation=value), self.wanted[1])
                drafted = [self.of_place(server, "dsv4_draft_tokens_total", name, place) for place in range(1, 9)]
                accepted = [self.of_place(server, "dsv4_accepted_draft_tokens_total", name, place) for place in range(1, 9)]
                self.assertEqual(sum(drafted), server.metric("dsv4_draft_tokens_total"))
                self.assertEqual([count > 0 for count in drafted], [place < int(places) for place in range(8)])
                self.assertEqual(sorted(accepted, reverse=True), accepted)
                self.assertGreater(accepted[0], 0)
                self.assertTrue(all(right <= count for right, count in zip(accepted, drafted)))
                for other in others:
                    status, _, reply = server.request("POST", CHAT, {"messages": QUESTION, "speculation": other})
                    self.assertEqual(status, 400)
                    self.assertIn(f"speculation: got {other}, which this server runs without", reply["error"]["message"])

    @staticmethod
    def of_place(server, name, drafter, place):
        _, _, text = server.request("GET", "/metrics")
        found = re.search(rf'^{name}\{{drafter="{drafter}",position="{place}\+?"\}} (\S+)$', text, flags=re.MULTILINE)
        return float(found[1])

    def test_answers_in_company_are_those_of_a_server_without_it(self):
        with Server("--speculation", "suffix:4", "--max-sequences", 8) as server:
            found = [None] * (2 * len(REQUESTS))

            def ask(i):
                found[i] = answer(server, REQUESTS[i % len(REQUESTS)])

            threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(found))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for i, got in enumerate(found):
                self.assertEqual(got, self.wanted[i % len(REQUESTS)], REQUESTS[i % len(REQUESTS)])

    def test_other_values_are_refused(self):
        with Server() as server:
            status, _, reply = server.request("POST", CHAT, {"messages": QUESTION, "speculation": "mtp:99"})
            self.assertEqual(status, 400)
            self.assertIn("speculation: got 'mtp:99', wanted auto, off,", reply["error"]["message"])
        with Server("--speculation", "suffix") as server:
            status, _, reply = server.request("POST", CHAT, {"messages": QUESTION, "speculation": "mtp"})
            self.assertEqual(status, 400)
            self.assertIn("speculation: got mtp, which this server runs without", reply["error"]["message"])


if __name__ == "__main__":
    unittest.main()
