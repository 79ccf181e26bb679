"""`./dev build` speaks while it works: on a terminal, in a log, and when it is interrupted. It names what a newcomer's machine lacks. Ninja,
CMake and apt are stand-ins.

    dev_build_test.py
"""
import os
import pathlib
import pty
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = 12
# Says what ninja says, slowly; asked for its inputs it names them at once.
NINJA = f"""#!/usr/bin/env python3
import signal, sys, time
if "inputs" in sys.argv:
    print("\\n".join("apps/CMakeFiles/dsv4_apps.dir/unit_%d.cc.o" % step for step in range({STEPS})))
    sys.exit()
def stop(*_):
    print("ninja: build stopped: interrupted by user.", flush=True)
    sys.exit(2)
signal.signal(signal.SIGINT, stop)
print("ninja: Entering directory `build/release'", flush=True)
for step in range(1, {STEPS} + 1):
    print(f"[{{step}}/{STEPS}] Building CXX object apps/CMakeFiles/dsv4_apps.dir/unit_{{step}}.cc.o", flush=True)
    time.sleep(0.15)
print("unit_3.cc:1: warning: something", flush=True)
"""


class DevBuild(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        shutil.copy(ROOT / "dev", self.root)
        (self.root / "CMakePresets.json").touch()
        (self.root / "build/release").mkdir(parents=True)
        tools = self.root / "tools"
        tools.mkdir()
        (tools / "ninja").write_text(NINJA, encoding="utf-8")
        for name in ("cmake", "apt-get"):
            (tools / name).write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
        for path in tools.iterdir():
            path.chmod(0o755)
        time.sleep(0.02)
        (self.root / "build/release/build.ninja").touch()
        (self.root / "build/release/CMakeCache.txt").write_text(f"CMAKE_HOME_DIRECTORY:INTERNAL={self.root}\n", encoding="utf-8")
        self.environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "CI": "true"}

    def start(self, stderr):
        return subprocess.Popen([self.root / "dev", "build", "-j", "2"], stdout=subprocess.DEVNULL, stderr=stderr, stdin=subprocess.DEVNULL,
                                env=self.environment, start_new_session=True)

    def test_a_log_has_a_line_at_once_and_lines_as_steps_are_done(self):
        process = self.start(subprocess.PIPE)
        seen = [(time.monotonic(), line.decode()) for line in process.stderr]
        process.stderr.close()
        self.assertEqual(process.wait(), 0, seen)
        text = [line for _, line in seen]
        self.assertRegex(text[0], rf"^Building release: {STEPS} units to compile")
        counts = [(when, int(match[1])) for when, line in seen if (match := re.match(rf"  (\d+) of {STEPS}, ", line))]
        self.assertGreaterEqual(len(counts), 8, text)
        self.assertEqual(counts[-1][1], STEPS)
        # One by one: a reader that waits for a block of them has all at the end.
        self.assertGreater(counts[-1][0] - counts[0][0], 0.8)
        self.assertIn("unit_3.cc:1: warning: something\n", text)
        self.assertRegex(text[-1], r"^Built release in \d+ s$")

    def test_a_terminal_has_a_counter_that_moves(self):
        leader, follower = pty.openpty()
        process = self.start(follower)
        os.close(follower)
        pieces = []
        while True:
            try:
                piece = os.read(leader, 65536)
            except OSError:
                break
            if not piece:
                break
            pieces.append(piece.decode())
        os.close(leader)
        self.assertEqual(process.wait(), 0)
        self.assertGreaterEqual(sum(f"of {STEPS}" in piece for piece in pieces), STEPS // 2, pieces)
        for step in range(1, STEPS + 1):
            self.assertIn(f"\r\x1b[K  {step} of {STEPS}", "".join(pieces))

    def test_an_interrupt_says_so_and_ends_a_shells_loop(self):
        process = self.start(subprocess.PIPE)
        for line in process.stderr:
            if b"  3 of" in line:
                break
        os.killpg(process.pid, signal.SIGINT)
        rest = process.stderr.read().decode()
        process.stderr.close()
        self.assertEqual(process.wait(), -signal.SIGINT, rest)
        self.assertIn("dev: interrupted; what is built stays", rest)

    def run_dev(self, *command, environment=None):
        """Exit status and what was said."""
        done = subprocess.run([*(command or (self.root / "dev", "build", "-j", "2"))], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, env=environment or self.environment, check=False)
        return done.returncode, done.stdout

    def stand_in(self, name, script):
        path = self.root / "tools" / name
        path.write_text("#!/bin/bash\n" + script, encoding="utf-8")
        path.chmod(0o755)

    def test_a_failed_build_is_not_built(self):
        self.stand_in("ninja", "echo '[1/2] Building CXX object a.o'; echo 'ninja: build stopped: subcommand failed.'; exit 1\n")
        code, said = self.run_dev()
        self.assertEqual(code, 1)
        self.assertNotIn("Built", said)
        self.assertTrue(said.endswith("ninja: build stopped: subcommand failed.\ndev: the build failed\n"), said)

    def test_up_to_three_suites_that_start_programs_are_asked_once_more_alone(self):
        for failed, passes_alone, status in ((("fleet",), True, 0), (("fleet",), False, 8), (("unit",), True, 8), (("fleet", "unit"), True, 8),
                                             (("a", "b", "c", "d"), True, 8), (("a", "b", "c"), True, 0)):
            self.stand_in("ctest", f"""if [[ " $* " == *" -N "* ]]; then
  printf '  Test  #%d: %s\\n' 1 fleet 2 a 3 b 4 c 5 d
elif [[ " $* " == *" -R "* ]]; then
  echo "alone: $*"
  exit {0 if passes_alone else 8}
else
  mkdir -p "$2/Testing/Temporary"
  printf '%s\\n' {' '.join(f"7:{name}" for name in failed)} >"$2/Testing/Temporary/LastTestsFailed.log"
  exit 8
fi
""")
            code, said = self.run_dev(self.root / "dev", "test")
            self.assertEqual(code, status, (failed, said))
            self.assertEqual("passed alone only" in said, status == 0, said)
            if status == 0:
                self.assertIn(f"-j 1 --output-on-failure --no-tests=error -R ^({'|'.join(failed)})$", said)

    def test_the_seconds_move_while_nothing_is_done(self):
        script = (self.root / "dev").read_text(encoding="utf-8")
        (self.root / "dev").write_text(script.replace("log_seconds=30", "log_seconds=2"), encoding="utf-8")
        self.stand_in("ninja", "case $* in *inputs*) echo a/unity_1.cc.o ;; *) sleep 3; printf '[1/2] Building CX'; sleep 3; echo 'X object a.o'; sleep 3 ;; esac\n")
        code, said = self.run_dev()
        self.assertEqual(code, 0, said)
        self.assertRegex(said, r"compile\n(  the first are compiled, [2-6] s\n){2,3}(  1 of 2, \d s\n){1,3}Built release in \d+ s\n$")

    def test_one_unit_on_one_processor_is_said_so(self):
        self.stand_in("ninja", "case $* in *inputs*) for i in $(seq $UNITS); do echo a/unity_$i.cc.o; done ;; *) echo '[1/1] Building CXX object a.o' ;; esac\n")
        for units, jobs, wanted in (1, 1, "1 unit to compile\n"), (9, 1, "9 units to compile, about 2 min on 1 processor,"), (9, 2, "9 units to compile, about 58 s on 2 processors,"):
            with self.subTest(wanted):
                code, said = self.run_dev(self.root / "dev", "build", "-j", str(jobs), environment=self.environment | {"UNITS": str(units)})
                self.assertEqual(code, 0, said)
                self.assertIn(f"Building release: {wanted}", said)

    def test_a_moved_clone_is_configured_again(self):
        (self.root / "build/release/CMakeCache.txt").write_text("CMAKE_HOME_DIRECTORY:INTERNAL=/elsewhere\n", encoding="utf-8")
        code, said = self.run_dev()
        self.assertEqual(code, 1)
        self.assertIn("Configuring release", said)
        self.assertFalse((self.root / "build/release/CMakeCache.txt").exists())

    def test_a_folder_that_cannot_be_written_is_named(self):
        shutil.rmtree(self.root / "build")
        (self.root / "build").write_text("", encoding="utf-8")
        code, said = self.run_dev()
        self.assertEqual(code, 1)
        self.assertIn(f"dev: {self.root}/build/release cannot be written", said)

    def test_a_rival_is_known_wherever_it_stands(self):
        for words, got in ((["--rival"], ""), (["--rival", "sglang"], "sglang"), (["--only", "check", "--rival=sglang"], "sglang"), (["--only", "check", "--rival", "sglang"], "sglang")):
            code, said = self.run_dev(self.root / "dev", "compare", *words)
            self.assertEqual(code, 2, said)
            self.assertIn(f"compare: --rival: got '{got}', wanted llama.cpp, freetoken or vllm", said)

    def test_without_home_and_with_another_shell(self):
        bare = {name: value for name, value in self.environment.items() if name not in ("HOME", "TERM", "XDG_CONFIG_HOME")} | {"LANG": "C"}
        self.assertNotIn("unbound", self.run_dev(self.root / "dev", "run", environment=bare)[1])
        self.assertEqual(self.run_dev("sh", self.root / "dev", "help")[0], 0)

    @unittest.skipUnless(os.geteuid() == 0 and "VERSION_ID=\"12\"" in pathlib.Path("/etc/os-release").read_text(encoding="utf-8"), "apt is asked by root of Debian 12")
    def test_apt_in_use_is_waited_for_and_its_cause_is_said_once(self):
        self.stand_in("dpkg-query", "exit 1\n")
        self.stand_in("sleep", "exit 0\n")
        self.stand_in("apt-get", f"""case " $* " in
          *" update "*) [[ -e {self.root}/tried ]] || {{ touch {self.root}/tried; echo "E: Could not get lock /var/lib/apt/lists/lock."; exit 100; }} ;;
          *) echo dlstatus:1:30.0:x >&3; echo hello ;;
        esac\n""")
        code, said = self.run_dev()
        self.assertEqual(code, 0, said)
        self.assertIn("another process uses apt", said)
        self.assertIn("  fetched 25 %", said)
        self.stand_in("apt-get", """case " $* " in
          *" update "*) echo "W: Failed to fetch http://x/InRelease  Could not resolve 'x'" ;;
          *) for p in "$@"; do echo "E: Unable to locate package $p"; done; exit 100 ;;
        esac\n""")
        code, said = self.run_dev()
        self.assertEqual(code, 1)
        self.assertIn("W: Failed to fetch http://x/InRelease", said)
        self.assertNotIn("Unable to locate", said)
        self.assertIn("dev: apt-get could not install these packages", said)


if __name__ == "__main__":
    unittest.main()
