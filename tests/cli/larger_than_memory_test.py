"""A model that is larger than the memory it may have runs from its file: slower, with the same logits, and is not killed. It reads
the experts that are chosen, and not much more.

A group of the kernel's memory controller (cgroup v1) plays the small machine; the page cache counts against its limit. Making
one takes root. Skipped, visibly, where that is not possible."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from dsv4_process import BINARY

SKIPPED = 77  # SKIP_RETURN_CODE in CMakeLists.txt.
CONTROLLER = pathlib.Path("/sys/fs/cgroup/memory")
LIMIT = 0.65  # Of the weights: room for all that is no expert, and for a quarter of the experts.
LAYERS = 6
DECODED = 6
# Bytes of shape mini: three weights of NVFP4, and how many experts a layer has and a token chooses.
EXPERT = 3 * 2048 * 1024 * 9 // 16
EXPERTS, CHOSEN = 32, 6


def disk_rate(errors):
    """Bytes a second of the disk, as the run says."""
    number, unit = re.search(r"the disk, which reads ([0-9.]+) (MB|GB)/s", errors).groups()
    return float(number) * {"MB": 1e6, "GB": 1e9}[unit]


class MemoryGroup:
    """A limit that processes enter as they start."""

    def __init__(self, limit=None):
        self.path = CONTROLLER / f"dsv4_test_{os.getpid()}"
        self.path.mkdir()
        try:
            if limit is not None:
                self.write("memory.limit_in_bytes", limit)
        except OSError:
            self.path.rmdir()
            raise

    def write(self, name, value):
        (self.path / name).write_text(str(value))

    def read(self, name):
        return int((self.path / name).read_text())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.path.rmdir()

    def start(self, *command):
        return subprocess.Popen([str(word) for word in command], stderr=subprocess.PIPE, text=True,
                                preexec_fn=lambda: self.write("cgroup.procs", os.getpid()))

    def run(self, *command):
        start = time.monotonic()
        process = self.start(*command)
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.stderr.close()
        process.returncode = os.waitstatus_to_exitcode(status)
        # Bytes read from the disk, read-ahead and faults included.
        return process.returncode, errors, time.monotonic() - start, usage.ru_inblock * 512


def why_not():
    if not (CONTROLLER / "memory.limit_in_bytes").exists():
        return f"{CONTROLLER} is no memory controller of cgroup v1"
    try:
        with MemoryGroup(1 << 30):
            return None
    except OSError as error:
        return f"no group can be made: {error}"


class LargerThanMemory(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        self.model = self.path / "model"
        subprocess.run([BINARY, "synth", self.model, "--shape", "mini", "--layers", str(LAYERS), "--format", "nvfp4-experts"], check=True)

    def test_a_server_serves_what_fits_and_ends_when_its_file_is_cut(self):
        weights = self.model / "model.safetensors"
        size = weights.stat().st_size
        with MemoryGroup(int(LIMIT * size)) as group, group.start(BINARY, "serve", "-m", self.model, "--port", "0") as process:
            try:
                said = ""
                for line in process.stderr:
                    said += line
                    if match := re.search(r"serves \S+ at (http://\S+)", line):
                        break
                url = match.group(1) + "/v1/"
                context = json.load(urllib.request.urlopen(url + "models", timeout=60))["data"][0]["max_model_len"]
                self.assertIn(f"context: {context} tokens of one sequence fit", said)
                self.assertIn("--prefix-cache-mib: memory has room for", said)
                body = json.dumps({"model": "model", "prompt": "one two", "max_tokens": 3}).encode()
                ask = urllib.request.Request(url + "completions", body, {"Content-Type": "application/json"})
                answer = json.load(urllib.request.urlopen(ask, timeout=60))
                self.assertEqual(answer["usage"]["completion_tokens"], 3)
                os.truncate(weights, size // 3)
                with self.assertRaises(urllib.error.HTTPError) as refused:
                    urllib.request.urlopen(ask, timeout=60)
                self.assertEqual(refused.exception.code, 503)
                refused.exception.close()
                rest = process.stderr.read()
                self.assertEqual(process.wait(60), 3, rest)
                self.assertIn("cut short", rest)
            finally:
                process.kill()

    def test_runs_slower_with_the_same_logits(self):
        path, model = self.path, self.model
        tokens = path / "tokens"
        tokens.write_text(" ".join(str(token * 17) for token in range(40)))
        weights = model / "model.safetensors"
        size = weights.stat().st_size
        outputs = []
        for limit in (None, int(LIMIT * size)):
            # Pages that lie in the cache since the file was written would be charged to nobody.
            with weights.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            output = path / f"logits.{len(outputs)}.npy"
            with MemoryGroup(limit) as group:
                status, errors, seconds, read = group.run(BINARY, "logits", "-m", model, "--tokens", tokens, "--output",
                                                          output, "--decode-from", 40 - DECODED)
                self.assertEqual(status, 0, errors)  # -9 is the kernel's answer to too much memory.
                peak, refused = group.read("memory.max_usage_in_bytes"), group.read("memory.failcnt")
            print(f"weights {size / 1e6:.0f} MB, limit {limit / 1e6 if limit else float('inf'):.0f} MB: peak "
                  f"{peak / 1e6:.0f} MB, {refused} times at the limit, {seconds:.2f} s, {read / 1e6:.0f} MB read")
            if limit is None:
                self.assertGreater(peak, LIMIT * size)  # The run wants more than the limit.
                self.assertEqual(refused, 0)
                self.assertNotIn("disk", errors)
            else:
                self.assertLessEqual(peak, limit)
                self.assertGreater(refused, 0)
                self.assertIn("of routed experts are read from disk when they are chosen", errors)
                self.assertIn("bounded by the disk, which reads", errors)
                # Each byte once while it loads, the prompt's experts, those of every token, half a second of the disk's rate. An eighth of
                # the bytes around them.
                chosen = EXPERT * LAYERS * (EXPERTS + CHOSEN * DECODED)
                self.assertLess(read, 1.125 * (size + chosen) + 0.6 * disk_rate(errors))
            outputs.append(output.read_bytes())
        self.assertEqual(outputs[0], outputs[1])


if __name__ == "__main__":
    reason = why_not()
    if reason:
        print("skipped: " + reason)
        sys.exit(SKIPPED)
    unittest.main()
