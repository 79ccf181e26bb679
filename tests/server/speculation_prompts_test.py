"""500 requests of a server with each drafter, eight at a time, get the answers of a server without. They have temperatures and seeds of
all kinds, penalties, log-probabilities, schemas, several answers, and stop strings. Minutes: `./dev test -C Long -L '^long$'`."""

import concurrent.futures
import os
import unittest

from server_process import Server
from speculation_soak import answer, requests

COUNT = int(os.environ.get("DSV4_SPECULATION_PROMPTS", "500"))
DRAFTERS = ("auto", "suffix", "suffix:7", "mtp", "mtp:3", "dspark", "dspark:5")


class Prompts(unittest.TestCase):
    @staticmethod
    def answers(*options):
        with Server(*options) as server, concurrent.futures.ThreadPoolExecutor(8) as clients:
            found = list(clients.map(lambda body: answer(server, body), requests(COUNT)))
            return found, server.metric("dsv4_accepted_draft_tokens_total")

    def test_answers_are_those_of_a_server_without_drafts(self):
        wanted, _ = self.answers("--speculation", "off")
        self.assertEqual(len(wanted), COUNT)
        for drafter in DRAFTERS:
            with self.subTest(drafter=drafter):
                found, accepted = self.answers("--speculation", drafter)
                for i, (got, want) in enumerate(zip(found, wanted)):
                    self.assertEqual(got, want, f"request {i}")
                if ":" in drafter:  # Whether a guess pays is up to the machine.
                    self.assertGreater(accepted, COUNT)


if __name__ == "__main__":
    unittest.main()
