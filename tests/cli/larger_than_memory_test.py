"""A model that is larger than the memory it may have runs from its file: slower, with the same logits, and is not killed.

A group of the kernel's memory controller (cgroup v1) plays the small machine; the page cache counts against its limit. Making
one takes root. Skipped, visibly, where that is not possible."""

import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

from dsv4_process import BINARY

SKIPPED = 77  # SKIP_RETURN_CODE in CMakeLists.txt.
CONTROLLER = pathlib.Path("/sys/fs/cgroup/memory")
LIMIT = 0.6  # Of the weights.


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

    def run(self, *command):
        start = time.monotonic()
        process = subprocess.Popen([str(word) for word in command], stderr=subprocess.PIPE, text=True,
                                   preexec_fn=lambda: self.write("cgroup.procs", os.getpid()))
        _, errors = process.communicate(timeout=800)
        return process.returncode, errors, time.monotonic() - start


def why_not():
    if not (CONTROLLER / "memory.limit_in_bytes").exists():
        return f"{CONTROLLER} is no memory controller of cgroup v1"
    try:
        with MemoryGroup(1 << 30):
            return None
    except OSError as error:
        return f"no group can be made: {error}"


class LargerThanMemory(unittest.TestCase):
    def test_runs_slower_with_the_same_logits(self):
        with tempfile.TemporaryDirectory() as temporary:
            path = pathlib.Path(temporary)
            model, tokens = path / "model", path / "tokens"
            subprocess.run([BINARY, "synth", model, "--shape", "mini", "--layers", "2", "--format", "nvfp4"], check=True)
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
                    status, errors, seconds = group.run(BINARY, "logits", "-m", model, "--tokens", tokens, "--output", output,
                                                        "--decode-from", 34)
                    self.assertEqual(status, 0, errors)  # -9 is the kernel's answer to too much memory.
                    peak, refused = group.read("memory.max_usage_in_bytes"), group.read("memory.failcnt")
                print(f"weights {size / 1e6:.0f} MB, limit {limit / 1e6 if limit else float('inf'):.0f} MB: peak "
                      f"{peak / 1e6:.0f} MB, {refused} times at the limit, {seconds:.2f} s")
                if limit is None:
                    self.assertGreater(peak, LIMIT * size)  # The run wants more than the limit.
                    self.assertEqual(refused, 0)
                else:
                    self.assertLessEqual(peak, limit)
                    self.assertGreater(refused, 0)
                outputs.append(output.read_bytes())
            self.assertEqual(outputs[0], outputs[1])


if __name__ == "__main__":
    reason = why_not()
    if reason:
        print("skipped: " + reason)
        sys.exit(SKIPPED)
    unittest.main()
