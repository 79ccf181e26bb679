"""TLS under attack: weak ciphers, half handshakes, clients that leave, renegotiation; with memory and an honest client beside it."""

import json
import pathlib
import socket
import ssl
import subprocess
import tempfile
import time
import unittest

from attack_testing import CHAT, MAX_MIB, MEMORY_FACTOR, REQUEST, memory, sized

from dsv4_process import PATIENCE, wait_until
from server_process import Server


class Tls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.root.cleanup)
        folder = pathlib.Path(cls.root.name)
        cls.certificate, key = folder / "certificate.pem", folder / "key.pem"
        # RSA: the ciphers without forward secrecy need it.
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=dsv4 test", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2",
                        "-out", cls.certificate, "-keyout", key], check=True, capture_output=True)
        cls.server = Server("--tls-certificate", cls.certificate, "--tls-key", key, "--client-seconds", 3, "--context", 4096, "--prefix-cache-mib", 16)
        cls.addClassCleanup(cls.server.__exit__)
        cls.answer = cls.ask()
        cls.model_mib = memory(cls.server.process)

    @classmethod
    def context(cls):
        return ssl.create_default_context(cafile=cls.certificate)

    @classmethod
    def connect(cls, context=None):
        raw = socket.create_connection((cls.server.host, cls.server.port), timeout=PATIENCE)
        try:
            return (context or cls.context()).wrap_socket(raw, server_hostname="127.0.0.1")
        except BaseException:
            raw.close()
            raise

    @classmethod
    def ask(cls, **more):
        body = json.dumps({**REQUEST, **more}).encode()
        with cls.connect() as connection:
            connection.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body))
            received = b""
            while piece := connection.recv(65536):
                received += piece
        return json.loads(received.split(b"\r\n\r\n", 1)[1])["choices"][0]["message"]

    def tearDown(self):
        self.assertEqual(self.ask(), self.answer)
        peak = memory(self.server.process, "VmHWM") - self.model_mib
        print(f"{self._testMethodName}: peak {peak:.0f} MiB beyond the model")
        self.assertLess(peak, MAX_MIB * MEMORY_FACTOR)

    def test_ciphers_without_forward_secrecy_or_with_cbc_are_refused(self):
        for cipher, wanted in (("AES128-SHA", False), ("AES256-GCM-SHA384", False), ("ECDHE-RSA-AES128-SHA", False), ("ECDHE-RSA-AES128-SHA256", False),
                               ("ECDHE-RSA-AES128-GCM-SHA256", True), ("ECDHE-RSA-CHACHA20-POLY1305", True)):
            with self.subTest(cipher=cipher):
                context = self.context()
                context.maximum_version = ssl.TLSVersion.TLSv1_2
                context.set_ciphers(cipher + "@SECLEVEL=0")
                try:
                    self.connect(context).close()
                    taken = True
                except (ssl.SSLError, ConnectionError):
                    taken = False
                self.assertEqual(taken, wanted)

    def test_renegotiation_is_refused(self):
        process = subprocess.Popen(["openssl", "s_client", "-connect", f"{self.server.host}:{self.server.port}", "-tls1_2", "-quiet"], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        with process:
            output, _ = process.communicate(b"GET /health HTTP/1.1\nR\n", timeout=PATIENCE)
        self.assertNotIn(b"200 OK", output)

    def test_half_handshakes(self):
        halves = []
        for i in range(sized(100, 300)):
            connection = socket.create_connection((self.server.host, self.server.port), timeout=PATIENCE)
            connection.sendall(b"\x16\x03\x01\x02\x00\x01"[:i % 7])
            halves.append(connection)
        begin = time.perf_counter()
        self.assertEqual(self.ask(), self.answer)
        print(f"beside {len(halves)} half handshakes: answer in {time.perf_counter() - begin:.2f} s")
        for connection in halves:
            try:
                while connection.recv(100):  # Ends: --client-seconds.
                    pass
            except ConnectionError:
                pass
            connection.close()

    def test_clients_that_leave(self):
        body = json.dumps({**REQUEST, "max_tokens": 3000, "ignore_eos": True, "stream": True}).encode()
        for i in range(sized(30, 100)):
            connection = self.connect()
            connection.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body))
            if i % 2:
                connection.recv(100)
            connection.close()

        def running():
            with self.connect() as connection:
                connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                received = b""
                while piece := connection.recv(65536):
                    received += piece
            return next(float(line.split()[1]) for line in received.decode().splitlines() if line.startswith("dsv4_requests_running "))
        wait_until(lambda: running() == 0, "their answers have ended")


if __name__ == "__main__":
    unittest.main()
