"""`--experts auto` on a GPU: steps behind the load are compared with the plan, what they say is printed, and no answer depends on them."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from dsv4_process import BINARY, PATIENCE, dsv4, dsv4_json, free_port

SKIPPED = 77
# Two layers of Flash, 7.3 GB of experts, on a GPU that has room for a third of them.
MODEL = ("--backend", "cuda", "--weights", "synthetic:flash,nvfp4-experts", "--max-layers", 2, "--gpu-memory", 7)
BENCH = ("bench", *MODEL, "--prefill", "none", "--depth", 0, "--batch", 1, "--check", "off")


class ExpertsAuto(unittest.TestCase):
    def test_bench_prints_what_was_verified(self):
        process = dsv4(*BENCH, "--experts", "auto", "--log-level", "info")
        self.assertEqual(process.returncode, 0, process.stderr)
        (line,) = re.findall(r"^experts  (.* ms a step, the plan had .*|.* takes .*)$", process.stderr + process.stdout, re.MULTILINE)
        self.assertIn("experts: " + line, process.stderr)
        self.assertRegex(process.stderr, r"the GPU reads [0-9.]+ GB/s, so all else of a step takes")

    def test_the_split_is_verified_and_stays_the_same_without_a_trial(self):
        experts = dsv4_json(*BENCH, "--json", "--experts", "auto")["experts"]
        verified = experts["verified"]
        self.assertGreater(verified["step_seconds"], 0)
        self.assertGreater(verified["planned_seconds"], 0)
        self.assertGreater(verified["host_experts"] + verified["brought_experts"], 0)
        self.assertIn(verified["loads"], (1, 2, 3))
        named = dsv4_json(*BENCH, "--json", "--experts", experts["split"])["experts"]
        self.assertEqual(named["split"], experts["split"])
        self.assertNotIn("verified", named)

    def test_no_logit_depends_on_the_trial(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "tokens").write_text(" ".join(str(7919 * i % 100000) for i in range(40)))

            def logits(experts, name):
                process = dsv4("logits", *MODEL, "--experts", experts, "--tokens", folder / "tokens", "--output", folder / name,
                               "--decode-from", 20, "--log-level", "info")
                self.assertEqual(process.returncode, 0, process.stderr)
                return re.findall(r"experts of a layer (\S+?),? ", process.stderr + " ")[-1], (folder / name).read_bytes()
            split, verified = logits("auto", "a.npy")
            self.assertEqual(logits(split, "b.npy"), (split, verified))

    def test_ranks_choose_for_their_own_layers(self):
        # Two layers a rank, as above; the GPU is that of both.
        model = ("--backend", "cuda", "--weights", "synthetic:flash,nvfp4-experts", "--max-layers", 4, "--gpu-memory", 7)
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "tokens").write_text(" ".join(str(7919 * i % 100000) for i in range(40)))

            def command(experts, name):
                return ("logits", *model, "--experts", experts, "--tokens", folder / "tokens", "--output", folder / name,
                        "--decode-from", 20, "--log-level", "info")
            shared = {"DSV4_CUDA_SHARE_DEVICES": "1"}
            process = dsv4(*command("auto", "a.npy"), "--ranks", 2, env=shared)
            self.assertEqual(process.returncode, 0, process.stderr)
            self.assertRegex(process.stderr, r"experts: .*ms a step, the plan had")
            # The last one that each rank has loaded.
            splits = dict(re.findall(r"rank (\d) of 2: placement pipeline.* experts of a layer (\S+?),? ", process.stderr + " "))
            self.assertEqual(sorted(splits), ["0", "1"], process.stderr)
            # Each rank names its own.
            ranks = {**shared, "WORLD_SIZE": "2", "MASTER_PORT": str(free_port()), "MASTER_ADDR": "localhost"}
            other = subprocess.Popen([BINARY, *map(str, command(splits["1"], "unused.npy"))],
                                     env=os.environ | ranks | {"RANK": "1", "LOCAL_RANK": "1"}, stderr=subprocess.DEVNULL)
            named = dsv4(*command(splits["0"], "b.npy"), env={**ranks, "RANK": "0", "LOCAL_RANK": "0"})
            self.assertEqual((named.returncode, other.wait(PATIENCE)), (0, 0), named.stderr)
            self.assertEqual((folder / "a.npy").read_bytes(), (folder / "b.npy").read_bytes())


if __name__ == "__main__":
    if dsv4("doctor", "--backend", "cuda").returncode != 0:
        print("skipped: the CUDA backend is not in this build, or there is no GPU")
        sys.exit(SKIPPED)
    unittest.main()
