"""Files that change under a running process, and names that are no ordinary files: what is read and what is written."""

import os
import pathlib
import shutil
import stat
import subprocess
import tempfile
import threading
import unittest

from dsv4_process import BINARY, PATIENCE, TINY, dsv4, read_npy
from server_process import Server

CHAT = "/v1/chat/completions"
REQUEST = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "thinking": False,
           "max_tokens": 4}
GONE = "model.safetensors: a part that was there cannot be read any more"


class Files(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def copy_model(self):
        model = self.directory / "model"
        shutil.copytree(TINY, model)
        return model


class Truncated(Files):
    """A process that touched a part that is gone was ended by SIGBUS, without a word."""

    def test_serve(self):
        # Answers under way end with an error of their own, and the server in order.
        model = self.copy_model()
        with Server("--backend", "reference", "--drain-seconds", "20", model=model) as server:
            events = server.stream(CHAT, {**REQUEST, "max_tokens": 4000, "ignore_eos": True},
                                   on_event=lambda count: count == 3 and os.truncate(model / "model.safetensors", 4096))
            self.assertEqual(server.process.wait(timeout=PATIENCE), 3)
        errors = [event["error"]["message"] for _, event in events if "error" in event]
        self.assertEqual(len(errors), 1, events[-3:])
        self.assertIn("cannot be read any more", errors[0])
        self.assertNotIn(str(model), errors[0])
        self.assertIn(GONE, "".join(server.log))
        self.assertIn(str(model), "".join(server.log))

    def test_serve_that_rests(self):
        model = self.copy_model()
        with Server("--backend", "reference", model=model) as server:
            os.truncate(model / "model.safetensors", 4096)
            status, reply = server.request("POST", CHAT, REQUEST)[:2]
            self.assertEqual(status, 503, reply)
            self.assertEqual(server.process.wait(timeout=PATIENCE), 3)
        self.assertIn(GONE, "".join(server.log))

    def test_run(self):
        model = self.copy_model()
        process = subprocess.Popen([BINARY, "run", "-m", model, "--backend", "reference", "--max-tokens", "4000", "--raw", "The"],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with process:
            process.stdout.read(1)  # It answers.
            os.truncate(model / "model.safetensors", 4096)
            _, log = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 3, log)
        self.assertIn(GONE, log.decode())


class Outputs(Files):
    def setUp(self):
        super().setUp()
        (self.directory / "ids").write_text("0 5 9")

    def logits(self, path):
        return dsv4("logits", "-m", TINY, "--tokens", self.directory / "ids", "--output", path)

    def test_logits_go_through_links_and_pipes(self):
        target, link, pipe = (self.directory / name for name in ("target.npy", "link", "pipe"))
        self.assertEqual(self.logits(target).returncode, 0)
        wanted = read_npy(target)
        target.write_bytes(b"old")
        link.symlink_to(target)
        self.assertEqual(self.logits(link).returncode, 0)
        self.assertTrue(link.is_symlink())
        self.assertEqual(read_npy(target), wanted)
        os.mkfifo(pipe)
        through = []
        reader = threading.Thread(target=lambda: through.append(pipe.read_bytes()))
        reader.start()
        self.assertEqual(self.logits(pipe).returncode, 0)
        reader.join(PATIENCE)
        self.assertEqual(through, [target.read_bytes()])
        self.assertTrue(pipe.is_fifo())
        self.assertEqual(sorted(path.name for path in self.directory.iterdir()), ["ids", "link", "pipe", "target.npy"])

    def test_devices_stay(self):
        device = self.directory / "null"
        try:
            os.mknod(device, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        except PermissionError:
            self.skipTest("only root makes devices")
        self.assertEqual(self.logits(device).returncode, 0)
        self.assertTrue(device.is_char_device())
        process = dsv4("diagnose", "stop-set", "-m", TINY, "--html", device)
        self.assertEqual(process.returncode, 0, process.stderr)
        self.assertTrue(device.is_char_device())

    def test_pages_go_through_links(self):
        target, link = self.directory / "page.html", self.directory / "link.html"
        link.symlink_to(target)
        self.assertEqual(dsv4("diagnose", "stop-set", "-m", TINY, "--html", link).returncode, 0)
        self.assertTrue(link.is_symlink())
        self.assertIn("</html>", target.read_text())

    def test_what_takes_no_file_is_refused(self):
        process = self.logits(self.directory)
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("a directory, wanted a file", process.stderr)
        process = self.logits("/dev/full")
        self.assertEqual(process.returncode, 1)
        self.assertIn("/dev/full: cannot write: No space left", process.stderr)


if __name__ == "__main__":
    unittest.main()
