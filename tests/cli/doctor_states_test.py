"""`dsv4 doctor --prefix-cache-dir`: what a folder of shared states is on, who writes there, and what is wrong with it."""

import fcntl
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from dsv4_process import BINARY, ROOT, dsv4

sys.path.append(str(ROOT / "tests" / "server"))
from server_process import Server  # noqa: E402

STATE = "0123456789abcdef0123456789abcdef.state"


class DoctorStates(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.cache = self.root / "cache"

    def doctor(self, *options, code=0):
        done = dsv4("doctor", "--prefix-cache-dir", self.cache, "--json", *options)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        found = {each["subject"]: (each["verdict"], each["text"]) for each in json.loads(done.stdout)["findings"]}
        return {name: found[name] for name in found if name == "shared states" or name.startswith("their ") or name == "its rules"}

    def make(self):
        (self.cache / "states").mkdir(parents=True)
        self.cache.chmod(0o700)

    def test_a_folder_that_servers_use(self):
        with Server("--prefix-cache-dir", self.cache, "--context", 4096) as server:
            text = " ".join(f"Fact {number}: a house is blue." for number in range(20))
            server.post("/v1/completions", {"prompt": text, "max_tokens": 1})
            while not server.metric("dsv4_prefix_disk_written_total"):
                pass
            before = sorted(path.relative_to(self.cache) for path in self.cache.rglob("*"))
            found = self.doctor()
            self.assertEqual(sorted(path.relative_to(self.cache) for path in self.cache.rglob("*")), before)
            self.assertEqual(found["shared states"], ("ok", str(self.cache)))
            self.assertEqual(found["its rules"][0], "ok")
            self.assertRegex(found["their leases"][1], r"^[1-9]\d* states?, 0 being written$")
            # A chroot does not see the mount that its root is in.
            mounts = [line.split()[4] for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()]
            self.assertRegex(found["their storage"][1], r"^\w+ at /" if "/" in mounts else "^which it is cannot be read")
            self.assertRegex(found["their room"][1], r"of the 10\.\d+ G\w* that all may have, .* free")
        self.assertNotIn("shared states", dsv4("doctor").stdout)

    def test_a_folder_that_is_not_there_is_not_made(self):
        self.cache = self.root / "not" / "there"
        verdict, text = self.doctor()["shared states"]
        self.assertEqual((verdict, text), ("note", f"{self.cache}: not there; a server's start makes it in {self.root}"))
        self.assertEqual(list(self.root.iterdir()), [])

    def test_what_is_no_folder(self):
        self.cache.write_text("x")
        self.assertEqual(self.doctor(code=1)["shared states"], ("missing", f"{self.cache}: not a folder"))
        self.cache = self.cache / "below"
        self.assertIn("Not a directory", self.doctor(code=1)["shared states"][1])

    def test_writers_that_live_and_that_died(self):
        self.make()
        names = [f"{STATE}.{number:016x}.unfinished" for number in range(3)]
        for name in names:
            (self.cache / "states" / name).write_bytes(b"x" * 1000)
        with (self.cache / "states" / names[0]).open("rb+") as live:
            fcntl.flock(live, fcntl.LOCK_EX)
            self.assertEqual(self.doctor()["their leases"], ("ok", "0 states, 1 being written, 2 left by dead servers, which the next one removes"))
        self.assertEqual(len(list((self.cache / "states").iterdir())), 3)
        (self.cache / "states" / "notes.txt").write_text("x")
        verdict, text = self.doctor()["their leases"]
        self.assertEqual(verdict, "note")
        self.assertIn("1 file in states/ holds no state and stays", text)

    def test_a_lock_that_another_program_keeps(self):
        self.make()
        with (self.cache / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            verdict, text = self.doctor(code=1)["their leases"]
        self.assertEqual(verdict, "missing")
        self.assertIn("another program has held the lock for 2 s", text)

    def test_room_and_mode(self):
        self.make()
        self.cache.chmod(0o755)
        self.assertIn("open to other users", self.doctor()["shared states"][1])
        verdict, text = self.doctor("--prefix-cache-disk-mib", 1 << 29)["their room"]
        self.assertEqual(verdict, "note")
        self.assertIn("full before --prefix-cache-disk-mib is", text)

    @unittest.skipIf(os.geteuid() != 0, "wants root, to be another user")
    def test_another_users_folder(self):
        self.make()
        os.chown(self.cache, 12345, 12345)
        self.root.chmod(0o755)
        self.assertEqual(self.doctor()["shared states"][0], "ok")  # Root may.
        try:
            done = subprocess.run([BINARY, "doctor", "--prefix-cache-dir", str(self.cache)], capture_output=True, text=True, user=54321, check=False)
        except PermissionError:
            self.skipTest("another user cannot run this binary")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("belongs to user 12345, this is 54321", done.stdout)


if __name__ == "__main__":
    unittest.main()
