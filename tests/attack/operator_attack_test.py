"""What happens to a server under load that no client does: the time of day jumps, certificates and keys are exchanged."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import ssl
import tempfile
import threading
import time
import unittest

from attack_testing import CHAT, REQUEST

from dsv4_process import PATIENCE, wait_until
from server_process import Server
from tls_test import make_certificate

JUMPS = 10  # Twice all that clock_jumps.c has.


class Load:
    """Clients that ask all the while. Every answer is to be the one that came first."""

    def __init__(self, ask, count=4):
        self.ask, self.expected = ask, ask(0)
        self.ended, self.answers, self.problems = threading.Event(), 0, []
        self.threads = [threading.Thread(target=self.run, args=(i,), daemon=True) for i in range(count)]

    def run(self, number):
        while not self.ended.is_set():
            try:
                answer = self.ask(number)
                if answer != self.expected:
                    self.problems.append(answer)
            except Exception as error:  # Whatever it is, the test reports it.
                self.problems.append(repr(error))
            self.answers += 1

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        for thread in self.threads:
            thread.join(PATIENCE)

    def more(self, count):
        """Waits for so many answers more."""
        goal = self.answers + count
        wait_until(lambda: self.answers >= goal, f"{count} more answers")


def content(status, body):
    return (status, json.loads(body)["choices"][0]["message"]) if status == 200 else (status, body[:200])


class Operator(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    @unittest.skipUnless(os.environ.get("DSV4_CLOCK_JUMPS"), "not beside a sanitizer")
    def test_the_time_of_day_jumps(self):
        responses = self.folder / "responses"
        environment = {"LD_PRELOAD": os.environ["DSV4_CLOCK_JUMPS"]}
        with Server("--context", 4096, "--max-sequences", 3, "--responses-dir", responses, "--prefix-cache-dir", self.folder / "states", "--access-log", self.folder / "log",
                    environment=environment) as server:
            def ask(number):
                return self.ask(server, {**REQUEST, "timeout": 60} if number == 3 else REQUEST)  # One has a deadline.
            stored = []
            with Load(ask) as load:
                for _ in range(JUMPS):
                    server.process.send_signal(signal.SIGUSR2)
                    load.more(8)
                    status, _, reply = server.request("POST", "/v1/responses", {"input": "hi", "max_output_tokens": 2})
                    self.assertEqual(status, 200)
                    stored.append(reply["id"])
                    self.assertEqual([server.request("GET", path)[0] for path in ("/health", "/ready", "/metrics")], [200] * 3)
            self.assertEqual(load.problems, [])
            for name in stored:
                wait_until(lambda name=name: server.request("GET", f"/v1/responses/{name}")[0] == 200, "a stored response")
            begin = time.monotonic()
        self.assertEqual(server.process.returncode, 0)
        self.assertLess(time.monotonic() - begin, PATIENCE)
        years = set(re.findall(r"^(\d{4})-", (self.folder / "log").read_text(), re.MULTILINE))
        self.assertGreater(len(years), 2, "the clock did not jump")
        print(f"{load.answers} answers over {JUMPS} jumps, years {sorted(years)}")

    @staticmethod
    def ask(server, body, key=None, context=None):
        connection = (http.client.HTTPSConnection(server.host, server.port, timeout=PATIENCE, context=context) if context else
                      http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE))
        with contextlib.closing(connection):
            connection.request("POST", CHAT, json.dumps(body), {"Authorization": f"Bearer {key}"} if key else {})
            response = connection.getresponse()
            return content(response.status, response.read())

    def test_certificates_and_keys_are_exchanged(self):
        certificate, key = make_certificate(self.folder, "in_force")
        keys = self.folder / "keys"
        keys.write_text("stays\n")
        with Server("--context", 4096, "--tls-certificate", certificate, "--tls-key", key, "--api-key-file", keys) as server:
            threading.Thread(target=lambda: server.log.extend(iter(server.process.stderr.readline, "")), daemon=True).start()
            context = ssl._create_unverified_context()  # Which of the certificates it is does not matter.

            def reloads():
                return sum("on SIGHUP: " in line for line in list(server.log))
            with Load(lambda _: self.ask(server, REQUEST, "stays", context)) as load:
                for i in range(8):
                    before = reloads()
                    if i % 4 == 3:  # Half of an exchange: the certificate and its key stay as they are.
                        key.write_text("no key")
                    else:
                        renewed = make_certificate(self.folder, f"new{i}")
                        os.replace(renewed[1], key)
                        os.replace(renewed[0], certificate)
                    keys.write_text(f"new{i}\nstays\n")
                    server.process.send_signal(signal.SIGHUP)
                    wait_until(lambda before=before: reloads() > before, "a reload")
                    load.more(8)
            self.assertEqual(load.problems, [])
            self.assertEqual(self.ask(server, REQUEST, "new0", context)[0], 401)
            self.assertEqual(self.ask(server, REQUEST, "new7", context)[0], 200)
        self.assertEqual(server.process.returncode, 0)
        print(f"{load.answers} answers over 8 exchanges")


if __name__ == "__main__":
    unittest.main()
