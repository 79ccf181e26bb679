"""`dsv4 serve` behind TLS: real clients, foreign bytes, and what is wrong with a certificate said at the start."""

import contextlib
import http.client
import json
import pathlib
import socket
import ssl
import subprocess
import tempfile
import unittest

from dsv4_process import PATIENCE, TINY, dsv4, wait_until
from server_process import Server

CHAT = "/v1/chat/completions"
REQUEST = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "thinking": False}


def make_certificate(folder, name, *key_options):
    """A self-signed certificate for this machine's loopback address, and its key."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}-key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", *(key_options or ["-nodes"]),
                    "-subj", "/CN=dsv4 test", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-days", "2",
                    "-out", certificate, "-keyout", key], check=True, capture_output=True)
    return certificate, key


class Tls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.root.name)
        cls.certificate, cls.key = make_certificate(cls.folder, "server")
        cls.server = Server("--tls-certificate", cls.certificate, "--tls-key", cls.key, "--client-seconds", 2, "--context", 4096)
        cls.context = ssl.create_default_context(cafile=cls.certificate)

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()
        cls.root.cleanup()

    def connect(self, context=None):
        return http.client.HTTPSConnection(self.server.host, self.server.port, timeout=PATIENCE, context=context or self.context)

    def post(self, path, body, connection=None):
        """The body of a reply; on a connection of its own unless one is given."""
        own = connection or self.connect()
        own.request("POST", path, json.dumps(body))
        response = own.getresponse()
        data = response.read()
        if connection is None:
            own.close()
        self.assertEqual(response.status, 200, data)
        return data

    def test_answers_and_streams(self):
        self.assertTrue(self.server.url.startswith("https://"))
        with Server("--context", 4096) as plain:
            expected = plain.post(CHAT, REQUEST)["choices"][0]["message"]["content"]
        connection = self.connect()
        for _ in range(2):  # One connection, two requests.
            self.assertEqual(json.loads(self.post(CHAT, REQUEST, connection))["choices"][0]["message"]["content"], expected)
        events = self.post(CHAT, {**REQUEST, "stream": True}, connection).decode().split("\n\n")
        chunks = [json.loads(event[6:]) for event in events if event.startswith("data: {")]
        self.assertEqual("".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks), expected)
        connection.close()

    def test_a_long_body_arrives(self):
        text = "word " * 300_000
        self.assertGreater(json.loads(self.post("/tokenize", {"prompt": text}))["count"], 100_000)

    def test_only_tls_1_2_and_later_and_only_for_who_trusts_it(self):
        with self.assertRaises(ssl.SSLCertVerificationError):
            self.connect(ssl.create_default_context()).request("GET", "/health")
        for version, works in ((ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True), (ssl.TLSVersion.TLSv1_3, True)):
            context = ssl.create_default_context(cafile=self.certificate)
            context.set_ciphers("DEFAULT@SECLEVEL=0")
            context.minimum_version = context.maximum_version = version
            connection = self.connect(context)
            if works:
                connection.request("GET", "/health")
                self.assertEqual(connection.getresponse().status, 200)
            else:
                with self.assertRaises(OSError):
                    connection.request("GET", "/health")
            connection.close()

    def test_the_end_of_a_reply_is_told_from_a_cut(self):
        with socket.create_connection((self.server.host, self.server.port)) as raw, \
             self.context.wrap_socket(raw, server_hostname="localhost", suppress_ragged_eofs=False) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            received = b""
            while data := connection.recv(4096):  # Raises without a close_notify.
                received += data
            self.assertIn(b"200 OK", received)

    def test_what_is_no_handshake_holds_nobody_up(self):
        silent = [socket.create_connection((self.server.host, self.server.port)) for _ in range(50)]
        for data in (b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", bytes(range(256)) * 40):
            with contextlib.suppress(ConnectionError):
                self.assertNotIn(b"HTTP", self.server.raw(data))  # An alert at most.
        silent[0].sendall(b"\x16\x03\x01\x02\x00\x01")  # The beginning of a greeting.
        self.assertIn("Paris", json.loads(self.post(CHAT, REQUEST))["choices"][0]["message"]["content"])
        for connection in silent:
            connection.settimeout(PATIENCE)
            try:
                while connection.recv(100):  # Ends: --client-seconds has passed.
                    pass
            except ConnectionError:
                pass
            connection.close()

    def test_a_client_that_leaves_stops_its_generation(self):
        def metric(name):
            connection = self.connect()
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
            connection.close()
            return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(name + " "))
        before = metric("dsv4_output_tokens_total")
        connection = self.connect()
        connection.request("POST", CHAT, json.dumps({**REQUEST, "max_tokens": 4000, "ignore_eos": True, "stream": True}))
        connection.getresponse().read(100)
        connection.sock.close()
        connection.close()
        wait_until(lambda: metric("dsv4_requests_running") == 0, "idle")
        self.assertLess(metric("dsv4_output_tokens_total") - before, 3900)

    def test_wrong_files_are_said_at_the_start(self):
        other_certificate, other_key = make_certificate(self.folder, "other")
        locked_certificate, locked_key = make_certificate(self.folder, "locked", "-passout", "pass:secret")
        garbage = self.folder / "garbage.pem"
        garbage.write_text("-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n")
        for certificate, key, option in ((self.folder / "none", self.key, "--tls-certificate"), (garbage, self.key, "--tls-certificate"),
                                         (self.key, self.key, "--tls-certificate"), (self.certificate, self.folder / "none", "--tls-key"),
                                         (self.certificate, self.certificate, "--tls-key"), (self.certificate, other_key, "--tls-key"),
                                         (other_certificate, self.key, "--tls-key"), (locked_certificate, locked_key, "--tls-key")):
            process = dsv4("serve", "-m", TINY, "--port", 0, "--tls-certificate", certificate, "--tls-key", key)
            self.assertEqual(process.returncode, 3, process.stderr)
            self.assertIn(option, process.stderr)
        for options in (("--tls-certificate", self.certificate), ("--tls-key", self.key),
                        ("--tls-certificate", self.certificate, "--tls-key", self.key, "--unix-socket", self.folder / "socket")):
            self.assertEqual(dsv4("serve", "-m", TINY, *options).returncode, 2)


if __name__ == "__main__":
    unittest.main()
