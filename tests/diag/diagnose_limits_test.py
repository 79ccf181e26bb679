"""Time of `diagnose all` on the small model, and memory of dumps. Prints the figures next to their limits."""

import json
import pathlib
import resource
import subprocess
import tempfile
import time
import unittest

from dsv4_process import BINARY, dsv4

ALL_LIMIT_SECONDS = 30


class Time(unittest.TestCase):
    def test_all_takes_seconds(self):
        start = time.monotonic()
        process = dsv4("diagnose", "all", "--threads", "2")
        seconds = time.monotonic() - start
        self.assertEqual(process.returncode, 0, process.stdout)
        print(f"diagnose all on the small model: {seconds:.1f} s on 2 threads, limit {ALL_LIMIT_SECONDS} s")
        self.assertLess(seconds, ALL_LIMIT_SECONDS)


class Memory(unittest.TestCase):
    def test_a_dump_is_never_in_memory(self):
        """Anonymous memory (a limit on it, so nothing is missed) stays below the dump's size, on disk and back."""
        directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        tokens = directory / "tokens"
        tokens.write_text(json.dumps([(i * i * 37 + i * 11) % 5120 for i in range(600)]), encoding="utf-8")
        commands = []
        for name in ("unlimited", "limited"):
            commands.append(("logits", "--tokens", tokens, "--output", directory / "x.npy", "--threads", "2",
                             "--dump", directory / name))
        self.assertEqual(dsv4(*commands[0]).returncode, 0)
        size = sum(path.stat().st_size for path in (directory / "unlimited").iterdir())
        limit = size * 3 // 4
        print(f"a dump of {size / 1e6:.0f} MB written and compared in at most {limit / 1e6:.0f} MB")
        compare = ("diagnose", "compare", "--with", directory / "limited", "--threads", "2", "--json")
        for command in (commands[1], compare):
            process = subprocess.run([BINARY, *map(str, command)], capture_output=True, text=True, check=False,
                                     preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)))
            self.assertEqual(process.returncode, 0, process.stderr)


if __name__ == "__main__":
    unittest.main()
