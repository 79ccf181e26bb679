"""Time of `diagnose all` on the small model, its memory on a larger one, and memory of dumps. Prints the figures next to their limits."""

import json
import os
import pathlib
import resource
import subprocess
import tempfile
import unittest

from dsv4_process import BINARY, dsv4

ALL_LIMIT_SECONDS = 60  # Of processor time: what others do on the machine takes none of it.
NUM_CHECKS = 13


class Time(unittest.TestCase):
    def test_all_takes_seconds(self):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        process = dsv4("diagnose", "all", "--threads", "2")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self.assertEqual(process.returncode, 0, process.stdout)
        print(f"diagnose all on the small model: {seconds:.1f} s of processor time, limit {ALL_LIMIT_SECONDS} s")
        self.assertLess(seconds, ALL_LIMIT_SECONDS)


class Memory(unittest.TestCase):
    def test_no_check_holds_a_second_copy_of_the_weights(self):
        """Neither in memory of its own (a limit on it, far below the weights) nor by mapping the file twice."""
        directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.assertEqual(dsv4("synth", directory / "model", "--shape", "mini", "--layers", "2", "--format", "nvfp4").returncode, 0)
        size = (directory / "model" / "model.safetensors").stat().st_size
        limit = size // 3
        with open(directory / "report.json", "w", encoding="utf-8") as output:
            process = subprocess.Popen([BINARY, "diagnose", "all", "-m", directory / "model", "--min-tokens", "24", "--threads", "2",
                                        "--json"], stdout=output,
                                       preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)))
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        reports = json.loads((directory / "report.json").read_text(encoding="utf-8"))["checks"]
        self.assertEqual(len(reports), NUM_CHECKS)
        self.assertEqual([report["check"] for report in reports if report["verdict"] == "finding"], [])
        peak = usage.ru_maxrss * 1024
        print(f"diagnose all: peak {peak / 1e6:.0f} MB, of them at most {limit / 1e6:.0f} MB its own; weights {size / 1e6:.0f} MB")
        self.assertGreater(peak, size / 2)  # The weights were used.
        self.assertLess(peak, size + limit)

    def test_memory_that_runs_out_is_an_error(self):
        # Half of what it needs, and more than its threads' stacks, which are as large as the limit for stacks says.
        for limit, stack, text in ((60 << 20, 8 << 20, "dsv4: .*(memory|allocate)"), (60 << 20, 64 << 20, "dsv4: no thread could be started")):
            def set_limits(limit=limit, stack=stack):
                resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
                resource.setrlimit(resource.RLIMIT_STACK, (stack, resource.getrlimit(resource.RLIMIT_STACK)[1]))
            process = subprocess.run([BINARY, "diagnose", "all", "--threads", "2"], capture_output=True, text=True, check=False,
                                     preexec_fn=set_limits)
            self.assertEqual(process.returncode, 1, process.stderr)
            self.assertRegex(process.stderr, text)
            self.assertNotIn("terminate called", process.stderr)

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
