"""Acts of an operator on a running server: SIGHUP, Ctrl-C, a host that others reach."""

import http.client
import os
import pathlib
import re
import shutil
import signal
import ssl
import subprocess
import tempfile
import threading
import unittest

from dsv4_process import BINARY, PATIENCE, ROOT, TINY, wait_until
from server_process import Server
from tls_test import make_certificate

QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "thinking": False, "max_tokens": 16}


class Lines:
    """Text that a server writes to standard error from now on."""

    def __init__(self, server):
        self.lines = server.log
        threading.Thread(target=lambda: self.lines.extend(iter(server.process.stderr.readline, "")), daemon=True).start()

    def wait_for(self, text):
        return wait_until(lambda: next((line for line in self.lines if text in line), None), f"a line with {text!r}")


class Reload(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_keys_and_the_access_log(self):
        keys, log = self.folder / "keys", self.folder / "access.log"
        keys.write_text("first\n")
        with Server("--api-key-file", keys, "--access-log", log, "--host", "127.0.0.1") as server:
            lines = Lines(server)

            def status(key):
                return server.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})[0]
            self.assertEqual((status("first"), status("second")), (200, 401))
            wait_until(lambda: log.exists() and log.read_text().count("/v1/models") == 2, "lines, which come behind the answers")
            keys.write_text("second\nthird\n")
            os.rename(log, self.folder / "access.log.1")
            server.process.send_signal(signal.SIGHUP)
            lines.wait_for("dsv4 reloads on SIGHUP: 2 API keys, the access log")
            self.assertEqual((status("first"), status("second"), status("third")), (401, 200, 200))
            wait_until(lambda: log.exists() and log.read_text().count("/v1/models") == 3, "lines in the new file")
            self.assertEqual((self.folder / "access.log.1").read_text().count("/v1/models"), 2)
            # A wrong file changes nothing, and is said.
            for wrong in ("", "# a comment\n", None):
                if wrong is None:
                    keys.unlink()
                else:
                    keys.write_text(wrong)
                before = len(lines.lines)
                server.process.send_signal(signal.SIGHUP)
                wait_until(lambda since=before: any(f"SIGHUP: {keys}" in line and "stays" in line for line in lines.lines[since:]), "a warning")
                self.assertEqual(status("second"), 200)

    def test_an_answer_goes_on_and_the_certificate_is_new(self):
        certificate, key = make_certificate(self.folder, "first")
        with Server("--tls-certificate", certificate, "--tls-key", key) as server:
            lines = Lines(server)

            def serial():
                pem = ssl.get_server_certificate((server.host, server.port), timeout=PATIENCE)
                return subprocess.run(["openssl", "x509", "-noout", "-serial"], input=pem, capture_output=True, text=True, check=True).stdout
            before = serial()
            context = ssl._create_unverified_context()
            connection = http.client.HTTPSConnection(server.host, server.port, timeout=PATIENCE, context=context)
            connection.request("POST", "/v1/completions", '{"prompt": "Once", "max_tokens": 400, "ignore_eos": true, "stream": true}', {"Content-Type": "application/json"})
            reply = connection.getresponse()
            first = reply.read(20)
            renewed = make_certificate(self.folder, "second")
            os.replace(renewed[1], key)
            os.replace(renewed[0], certificate)
            server.process.send_signal(signal.SIGHUP)
            lines.wait_for("dsv4 reloads on SIGHUP: the TLS certificate")
            self.assertNotEqual(serial(), before)
            self.assertTrue((first + reply.read()).endswith(b"data: [DONE]\n\n"))
            certificate.write_text("no certificate")
            server.process.send_signal(signal.SIGHUP)
            lines.wait_for("what was in force stays")
            self.assertNotEqual(serial(), before)

    def test_with_nothing_to_read_it_lives_on(self):
        with Server() as server:
            lines = Lines(server)
            server.process.send_signal(signal.SIGHUP)
            lines.wait_for("dsv4 reloads on SIGHUP: nothing")
            self.assertEqual(server.request("POST", "/v1/chat/completions", QUESTION)[0], 200)


class Ends(unittest.TestCase):
    def test_by_signals(self):
        for number, wanted in ((signal.SIGTERM, 0), (signal.SIGINT, -signal.SIGINT)):
            with Server() as server:
                server.process.send_signal(number)
                self.assertEqual(server.process.wait(timeout=PATIENCE), wanted)
            start = next(line for line in server.log if " serves " in line)
            stop = next(line for line in server.log if " stops serving " in line)
            self.assertEqual(start.split(" serves ")[0], stop.split(" stops serving ")[0])

    def test_a_server_that_anyone_reaches_says_so(self):
        for arguments, warned in ((("--host", "0.0.0.0"), True), (("--host", "0.0.0.0", "--api-key", "k"), False), ((), False)):
            with Server(*arguments) as server:
                pass
            self.assertEqual(any("it answers anyone" in line for line in server.log), warned, server.log)


class Unit(unittest.TestCase):
    def test_the_unit_reads_keys_as_credentials_and_names_the_reload(self):
        unit = (ROOT / "deploy" / "dsv4.service").read_text()
        for line in ("LoadCredential=keys:/etc/dsv4/keys", "ExecReload=/bin/kill -HUP $MAINPID", "StateDirectory=dsv4", "Environment=HF_HOME=/var/lib/dsv4/huggingface"):
            self.assertIn(line, unit.splitlines())
        guide = (ROOT / "deploy" / "README.md").read_text()
        self.assertIn("install -D -m 600 KEYS /etc/dsv4/keys", guide)
        self.assertIn("HF_HOME=/var/lib/dsv4/huggingface dsv4 pull", guide)
        process = subprocess.run([BINARY, "serve", "--port", "0", "-m", TINY, "--api-key-file", "/nonexistent"], capture_output=True, text=True, check=False)
        self.assertEqual(process.returncode, 3)

    @unittest.skipUnless(shutil.which("systemd-analyze"), "no systemd-analyze (Debian's systemd)")
    def test_systemd_takes_the_unit(self):
        """As it stands, and as the .deb has it; the pages that it names are those of installed programs."""
        unit = (ROOT / "deploy" / "dsv4.service").read_text()
        packaged = re.sub(r"^LoadCredential=keys:.*\n", "#\\g<0>", unit, flags=re.MULTILINE).replace(" --api-key-file %d/keys", "")
        self.assertNotEqual(unit, packaged)
        for text in (unit, packaged):
            text = re.sub(r"^Documentation=.*\n", "", text, flags=re.MULTILINE).replace("/usr/local/bin/dsv4", str(pathlib.Path(BINARY).resolve()))
            for fault, wanted in (("", ""), ("NoSuchSetting=yes\n[Install]", "NoSuchSetting")):
                with tempfile.TemporaryDirectory() as folder:
                    path = pathlib.Path(folder, "dsv4.service")
                    path.write_text(text.replace("[Install]", fault) if fault else text)
                    done = subprocess.run(["systemd-analyze", "verify", path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
                if fault:
                    self.assertIn(wanted, done.stdout)
                else:
                    self.assertEqual((done.returncode, done.stdout), (0, ""))


if __name__ == "__main__":
    unittest.main()
