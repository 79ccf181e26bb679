"""`dsv4 pull`: right bytes or a named error, and what came is used by the next call."""

import concurrent.futures
import fcntl
import json
import os
import pathlib
import random
import signal
import subprocess
import tempfile
import time
import unittest

from faulty_hub import Hub, git_digest, plan

from dsv4_process import BINARY, PATIENCE, TINY, dsv4, wait_until

FAST = ("--retry-wait", "0.001")
# Only where the hub stalls: elsewhere a busy machine may be as slow as it likes, and what was fetched is counted.
STALL = ("--stall", "1")


def some_files(seed, num_large=3):
    chance = random.Random(seed)
    files = {"config.json": b'{"a": 1}', "README.md": chance.randbytes(chance.randrange(1, 3000)), "empty.json": b"",
             "figures/plot.png": b"png", "generation_config.json": b'{"a": 1}'}
    for i in range(num_large):
        files[f"model-{i}.safetensors"] = chance.randbytes(chance.randrange(5000, 400000))
    return files


def needed(files):
    return {name: data for name, data in files.items() if "/" not in name}


class Pull(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.home = pathlib.Path(directory.name)

    def environment(self, hub, **more):
        return {"HF_ENDPOINT": hub.url, "HF_HOME": str(self.home), "HF_HUB_CACHE": "", "HF_TOKEN": "", "no_proxy": "*", **more}

    def pull(self, hub, *arguments, reference="o/n", **more):
        return dsv4("pull", reference, *FAST, *arguments, env=self.environment(hub, **more))

    def right(self, process, files):
        self.assertEqual(process.returncode, 0, process.stderr)
        snapshot = pathlib.Path(process.stdout.strip())
        got = {str(path.relative_to(snapshot)): path.read_bytes() for path in snapshot.rglob("*") if path.is_file()}
        self.assertEqual(got.keys(), files.keys())
        self.assertEqual(got, files)
        left = [path.name for path in (self.home / "hub").rglob("*") if path.name.endswith((".incomplete", ".new"))]
        self.assertEqual(left, [])
        return snapshot


class Healthy(Pull):
    def test_layout_is_that_of_huggingface_hub(self):
        files = some_files(1)
        with Hub(files) as hub:
            snapshot = self.right(self.pull(hub), needed(files))
            repository = self.home / "hub" / "models--o--n"
            self.assertEqual(snapshot, repository / "snapshots" / hub.commit)
            self.assertEqual((repository / "refs" / "main").read_text(), hub.commit)
            link = snapshot / "config.json"
            self.assertEqual(os.readlink(link), f"../../blobs/{git_digest(files['config.json'])}")
            # Nothing is fetched twice, equal files are fetched once, and an empty one not at all.
            fetched = [path for path, *_ in hub.requests if "/resolve/" in path]
            self.assertEqual(len(fetched), len(set(needed(files).values()) - {b""}))
            again = self.pull(hub, "--json")
            self.assertEqual(json.loads(again.stdout)["bytes_fetched"], 0)
            self.assertEqual(len([path for path, *_ in hub.requests if "/resolve/" in path]), len(fetched))
            self.right(self.pull(hub, "--all-files"), files)

    def test_revisions(self):
        files = some_files(2)
        with Hub(files) as hub:
            self.right(self.pull(hub, reference="o/n@refs/pr/3"), needed(files))
            self.assertEqual((self.home / "hub/models--o--n/refs/refs/pr/3").read_text(), hub.commit)
            self.assertEqual([path for path, *_ in hub.requests][0], "/api/models/o/n/revision/refs%2Fpr%2F3")
            self.right(self.pull(hub, reference=f"o/n@{hub.commit}"), needed(files))
            self.assertFalse((self.home / "hub/models--o--n/refs" / hub.commit).exists())

    def test_a_new_commit_shares_what_did_not_change(self):
        files = some_files(3)
        with Hub(files) as hub:
            self.right(self.pull(hub), needed(files))
            hub.commit, hub.files["config.json"] = "d" * 40, b'{"a": 2}'
            hub.requests.clear()
            snapshot = self.right(self.pull(hub), needed(files) | {"config.json": b'{"a": 2}'})
            self.assertEqual(snapshot.name, "d" * 40)
            self.assertEqual(len([path for path, *_ in hub.requests if "/resolve/" in path]), 1)

    def test_token_stays_with_the_hub(self):
        files = some_files(4)
        with Hub(files, token="secret") as hub:
            refused = self.pull(hub)
            self.assertEqual(refused.returncode, 1)
            self.assertIn("401", refused.stderr)
            self.assertIn("HF_TOKEN", refused.stderr)
            self.right(self.pull(hub, HF_TOKEN="secret"), needed(files))
            (self.home / "token").write_text("secret\n")
            self.right(self.pull(hub, "--all-files"), files)
            self.assertEqual(hub.leaked, [])

    def test_the_model_runs_by_its_name(self):
        names = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")
        files = {path.name: path.read_bytes() for name in names if (path := TINY / name).exists()}
        ask = ("run", "-m", "o/n", "--temperature", "0", "What is the capital of France?")
        with Hub(files) as hub:
            before = dsv4(*ask, env=self.environment(hub))
            self.assertEqual(before.returncode, 3)
            self.assertIn("dsv4 pull o/n", before.stderr)
            self.assertEqual(hub.requests, [], "nothing is fetched by itself")
            self.assertEqual(self.pull(hub).returncode, 0)
            after = dsv4(*ask, env=self.environment(hub))
            self.assertIn("Paris", after.stdout)


class Faults(Pull):
    def test_a_hundred_seeded_ones(self):
        def calls_until_right(seed):
            one = Pull()  # With a folder of its own: several run at once, since most of the time is waiting.
            with tempfile.TemporaryDirectory() as home:
                one.home = pathlib.Path(home)
                files = some_files(seed, num_large=2)
                with Hub(files, plan(seed)) as hub:
                    for calls in range(1, 9):
                        process = one.pull(hub, *STALL, "--retries", "2")
                        if process.returncode == 0:
                            one.right(process, needed(files))
                            return calls
                        # Named: which repository, and what came of it.
                        one.assertRegex(process.stderr, r"o/n: .*: (gave up after|digest|HTTP|listing)", f"seed {seed}")
            raise AssertionError(f"seed {seed}: not right after 8 calls: {process.stderr}")

        with concurrent.futures.ThreadPoolExecutor(10) as pool:
            calls = list(pool.map(calls_until_right, range(100)))
        print(f"right at call 1, 2, ...: {[calls.count(n) for n in range(1, 9)]}")
        self.assertGreater(len([n for n in calls if n > 1]), 5, "the faults were too tame")

    def test_a_hub_without_an_address_is_tried_twice(self):
        # A name that no one can have (RFC 2606).
        process = dsv4("pull", "o/n", "--retry-wait", "0.001", "--retries", "9",
                       env={"HF_ENDPOINT": "http://hub.invalid", "HF_HOME": str(self.home), "HF_HUB_CACHE": "", "HF_TOKEN": "", "no_proxy": "*"})
        self.assertEqual(process.returncode, 1, process.stderr)
        self.assertIn("try 1 of 2 failed: Could not resolve host: hub.invalid", process.stderr)
        self.assertRegex(process.stderr, r"o/n: http://hub.invalid/\S*: gave up after 2 tries: Could not resolve host: hub.invalid\n")
        once = dsv4("pull", "o/n", "--retries", "0", env={"HF_ENDPOINT": "http://hub.invalid", "HF_HOME": str(self.home), "no_proxy": "*"})
        self.assertIn("gave up after 1 try", once.stderr)

    def test_what_no_retry_mends_is_named_at_once(self):
        files = some_files(5)
        for fault, wanted, code in (("404", "HTTP 404", 3), ("403", "HTTP 403", 1), ("loop", "redirects", 1), ("400", "HTTP 400", 1)):
            with self.subTest(fault), Hub(files, lambda kind, name, _, f=fault: f if name == "README.md" else None) as hub:
                process = self.pull(hub)
                self.assertEqual(process.returncode, code, process.stderr)
                self.assertIn("o/n: README.md: ", process.stderr)
                self.assertIn(wanted, process.stderr)
                self.assertFalse((self.home / "hub/models--o--n/refs/main").exists())

    def test_what_stays_so_is_given_up(self):
        files = some_files(6)
        for fault in ("503", "drop at once", "wrong range", "long"):
            with self.subTest(fault), Hub(files, lambda kind, name, _, f=fault: f if name == "model-1.safetensors" else None) as hub:
                process = self.pull(hub, "--retries", "3")
                self.assertEqual(process.returncode, 1, process.stderr)
                self.assertIn("model-1.safetensors: gave up after", process.stderr)
                self.assertIn("model-1.safetensors: try 3 failed: ", process.stderr)
                self.assertNotIn("model-1.safetensors: try 2 failed: ", process.stderr)
        with Hub(files, lambda kind, name, _: "damaged" if name == "model-1.safetensors" else None) as hub:
            process = self.pull(hub)
            self.assertEqual(process.returncode, 3, process.stderr)
            self.assertIn("model-1.safetensors: digest", process.stderr)
            self.assertEqual(hub.tries["model-1.safetensors"], 3)
        with Hub(files) as hub:  # What is left of all that does not harm.
            self.right(self.pull(hub), needed(files))

    def test_no_hub_and_no_repository(self):
        with Hub({}) as hub:
            empty = self.pull(hub)
            self.assertEqual(empty.returncode, 3, empty.stderr)
            unknown = self.pull(hub, reference="o/other")
            self.assertEqual(unknown.returncode, 3)
            self.assertIn("o/other: ", unknown.stderr)
        gone = self.pull(hub, "--retries", "1")
        self.assertEqual(gone.returncode, 1)
        self.assertIn("gave up after 2 tries", gone.stderr)
        self.assertRegex(gone.stderr, r"/api/models/o/n/revision/main\S*: try 1 of 2 failed: .+; the next in \d\.\d s\n")
        self.assertEqual(self.pull(hub, reference="../../etc").returncode, 2)

    def test_a_file_that_changed_on_the_hub(self):
        files = some_files(7)
        with Hub(files) as hub:
            listing = hub.listing()
            hub.listing = lambda: listing
            hub.files["model-0.safetensors"] = bytes(len(files["model-0.safetensors"]))
            process = self.pull(hub)
            self.assertEqual(process.returncode, 3)
            self.assertIn("changed on the hub", process.stderr)

    def test_hostile_listings_write_nothing_outside(self):
        with Hub({"config.json": b"{}"}) as hub:
            for entry in ({"rfilename": "../../evil.json", "size": 2, "blobId": "a" * 40},
                          {"rfilename": "a.json", "size": 2, "blobId": "../" * 13 + "a"}):
                hub.listing = lambda entry=entry: {"sha": hub.commit, "siblings": [entry]}
                process = self.pull(hub, "--retries", "0", "--all-files")
                self.assertEqual(process.returncode, 1, process.stderr)
                self.assertIn("listing: ", process.stderr)
        self.assertEqual([path for path in self.home.rglob("*") if path.is_file()], [])

    def test_space_is_checked_first(self):
        with Hub({"config.json": b"{}"}) as hub:
            hub.listing = lambda: {"sha": hub.commit, "siblings": [{"rfilename": "a.safetensors", "size": 10**18, "blobId": "a" * 40}]}
            process = self.pull(hub)
            self.assertEqual(process.returncode, 1)
            self.assertIn("1000000000.000 GB are to come", process.stderr)
            self.assertEqual(len(hub.requests), 1)

    def test_a_full_disk(self):
        files = some_files(8) | {"model-9.safetensors": bytes(3 << 20)}
        with Hub(files) as hub:
            # A limit on file sizes stands for the disk: pwrite fails in the same way.
            process = subprocess.run(["prlimit", "--fsize=1048576", BINARY, "pull", "o/n", *FAST], capture_output=True, text=True,
                                     env=os.environ | self.environment(hub), preexec_fn=lambda: signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
                                     timeout=PATIENCE, check=False)
            self.assertEqual(process.returncode, 1, process.stderr)
            self.assertIn("model-9.safetensors: ", process.stderr)
            self.assertIn("cannot write", process.stderr)
            self.right(self.pull(hub), needed(files))


class Resumed(Pull):
    def test_after_kill_9(self):
        files = {"config.json": b"{}", "model.safetensors": random.Random(9).randbytes(8 << 20)}
        cut = {"file": "stall"}
        with Hub(files, lambda kind, name, tries: cut["file"] if name == "model.safetensors" and tries == 1 else None) as hub:
            process = subprocess.Popen([BINARY, "pull", "o/n", "--stall", "60"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                       env=os.environ | self.environment(hub))
            blobs = self.home / "hub/models--o--n/blobs"

            def third():
                return [path for path in blobs.glob("*.incomplete") if path.stat().st_size > 2 << 20]

            wait_until(third, "a third of the file")
            process.kill()
            process.communicate()
            there = third()[0].stat().st_size
            again = self.pull(hub, "--json")
            self.assertEqual(json.loads(again.stdout)["bytes_fetched"], len(files["model.safetensors"]) - there)
            ranges = [given for path, given, _ in hub.requests if path == "/blob/model.safetensors"]
            self.assertEqual(ranges[-1], f"bytes={there}-")
            self.right(self.pull(hub), files)

    def test_what_comes_byte_by_byte_is_asked_for_again(self):
        files = some_files(8)
        with Hub(files, lambda kind, name, tries: "trickle" if tries == 1 and name in ("", "README.md", "model-0.safetensors") else None) as hub:
            process = self.pull(hub, *STALL)
            self.right(process, needed(files))
            self.assertEqual([hub.tries[name] for name in ("listing", "README.md", "model-0.safetensors")], [2, 2, 2])
            self.assertIn("try 1 of 9 failed: Operation too slow", process.stderr)

    def test_after_ctrl_c(self):
        files = {"config.json": b"{}", "model.safetensors": random.Random(9).randbytes(1 << 20)}
        with Hub(files, lambda kind, name, tries: "stall" if name == "model.safetensors" and tries == 1 else None) as hub:
            process = subprocess.Popen([BINARY, "pull", "o/n", "--stall", "60"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                       env=os.environ | self.environment(hub))
            wait_until(lambda: hub.tries.get("model.safetensors"), "the request")
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            _, log = process.communicate(timeout=PATIENCE)
            self.assertEqual(process.returncode, -signal.SIGINT)
            self.assertIn("goes on from here", log)
            self.right(self.pull(hub), files)

    def test_damage_on_disk_is_found(self):
        files = some_files(10)
        with Hub(files) as hub:
            snapshot = self.right(self.pull(hub), needed(files))
            blob = (snapshot / "model-0.safetensors").resolve()
            data = bytearray(blob.read_bytes())
            data[100] ^= 1
            blob.write_bytes(data)
            self.right(self.pull(hub, "--verify"), needed(files))
            # A partial file with wrong bytes is begun anew.
            blob.unlink()
            pathlib.Path(f"{blob}.incomplete").write_bytes(bytes(1000))
            self.right(self.pull(hub), needed(files))

    def test_two_at_once(self):
        files = {"config.json": b"{}", "model.safetensors": random.Random(9).randbytes(1 << 20)}
        with Hub(files, lambda kind, name, tries: "stall" if name == "model.safetensors" and tries == 1 else None) as hub:
            run = [subprocess.Popen([BINARY, "pull", "o/n", *FAST, *STALL], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                    env=os.environ | self.environment(hub)) for _ in range(2)]
            for process in run:
                _, log = process.communicate(timeout=PATIENCE)
                self.assertEqual(process.returncode, 0, log)
            self.right(self.pull(hub), files)

    def test_a_lock_of_another_program_is_waited_for(self):
        files = {"config.json": b"{}"}
        locks = self.home / "hub/.locks/models--o--n"
        locks.mkdir(parents=True)
        with Hub(files) as hub, open(locks / f"{git_digest(b'{}')}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            process = subprocess.Popen([BINARY, "pull", "o/n", "--log-level", "info"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                       env=os.environ | self.environment(hub))
            with self.assertRaises(subprocess.TimeoutExpired):
                process.communicate(timeout=1)
            self.assertEqual([path for path, *_ in hub.requests if "/resolve/" in path], [])
            fcntl.flock(lock, fcntl.LOCK_UN)
            _, log = process.communicate(timeout=PATIENCE)
            self.assertEqual(process.returncode, 0, log)
            self.assertIn("config.json: another process fetches it", log)


if __name__ == "__main__":
    unittest.main()
