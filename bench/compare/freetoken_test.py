"""The comparison with FreeToken, without FreeToken and without a GPU: ratios, commands, files, and what fails by name. Standard library only."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import struct
import unittest
import zipfile
from array import array
from pathlib import Path
from unittest import mock

import compare_freetoken
import freetoken_files
import freetoken_report
import freetoken_timing
import logits_file
import machine
import rival_install
from engine_process import EngineError
from rival_install import FREETOKEN
from test_folder import WithFolder

TINY = Path(__file__).resolve().parents[2] / "models" / "tiny"


def dsv4_report(prefill: float, decode1: float, decode4: float) -> dict:
    """Output of dsv4 bench --json, as far as it is read. Rows of steps in flight are of no interest here."""
    rows = [("prefill", 1, 8192, prefill), ("decode", 1, 1, decode1), ("ahead", 1, 1, 9999), ("decode", 4, 1, decode4), ("ahead", 4, 1, 9999)]
    return {"rows": [dict(zip(("kind", "batch", "tokens", "tokens_per_second"), row)) for row in rows], "experts": {"split": "cached=256"}}


def freetoken_turn(prefill: float, step1: float, step4: float) -> dict:
    """Warm-up steps take a hundred seconds each: they do not count."""
    slow = [100.0] * freetoken_report.WARM_UP_STEPS
    return {"prefill_seconds": [prefill, prefill, 50.0], "decode_seconds": {"1": [*slow, step1], "4": [*slow, step4]}, "gpu_bytes": 15_000_000_000}


class Report(unittest.TestCase):
    def test_rates(self) -> None:
        self.assertEqual(freetoken_report.rates_of_freetoken(freetoken_turn(2.0, 0.01, 0.02), 8192), [4096, 100, 200])
        self.assertEqual(freetoken_report.rates_of_dsv4(dsv4_report(5000, 120, 140), 8192), [5000, 120, 140])

    def test_ratios_are_of_medians_and_of_turns_that_followed_each_other(self) -> None:
        rows = freetoken_report.rows(8192, [[400, 120, 140], [800, 100, 140], [600, 90, 140]], [[100, 100, 140], [400, 100, 280], [200, 60, 70]])
        self.assertEqual([row.workload for row in rows], ["prefill 8192", "decode, batch 1", "decode, batch 4"])
        self.assertEqual([row.ratio() for row in rows], [3, 1, 1])
        self.assertEqual([row.ratio_of_turns() for row in rows], [(2, 4), (1, 1.5), (0.5, 2)])

    def test_the_table_says_ratios_and_goals(self) -> None:
        lines = freetoken_report.table(freetoken_report.rows(8192, [[3000.0, 120.0, 140.0]], [[1000.0, 100.0, 280.0]])).splitlines()
        self.assertRegex(lines[1], r"^prefill 8192 +3000\.0 +1000\.0 +3\.00x +3\.00 to 3\.00 +goal 3\.0x: reached$")
        self.assertRegex(lines[2], r"^decode, batch 1 +120\.0 +100\.0 +1\.20x +1\.20 to 1\.20 +goal 1\.5x: MISSED$")
        self.assertRegex(lines[3], r"^decode, batch 4 +140\.0 +280\.0 +0\.50x +0\.50 to 0\.50$")

    def test_what_is_missing_is_no_row(self) -> None:
        with self.assertRaisesRegex(ValueError, "2 turns of dsv4 and 1 of FreeToken"):
            freetoken_report.rows(8192, [[1, 1, 1], [1, 1, 1]], [[1, 1, 1]])
        with self.assertRaisesRegex(ValueError, "0 turns"):
            freetoken_report.rows(8192, [], [])
        with self.assertRaisesRegex(ValueError, "0 rows prefill of 4096 tokens"):
            freetoken_report.rates_of_dsv4(dsv4_report(1, 1, 1), 4096)
        turn = freetoken_turn(1, 1, 1)
        turn["decode_seconds"]["4"] = turn["decode_seconds"]["4"][:16]
        with self.assertRaisesRegex(ValueError, "fewer than 18 decode steps of 4 sequences"):
            freetoken_report.rates_of_freetoken(turn, 8192)


class Commands(WithFolder):
    def test_modes(self) -> None:
        modes = compare_freetoken.parse(["--mode", "offload", "--mode", "hybrid", "--mode", "cpu:auto/host=100%"]).modes
        self.assertEqual([(mode.strategy, mode.splits) for mode in modes],
                         [("offload", ("auto",)), ("hybrid", ("cached=50%,host=50%",)), ("cpu", ("auto", "host=100%"))])
        self.assertEqual([mode.strategy for mode in compare_freetoken.parse([]).modes], ["offload"])

    def test_what_cannot_be_asked_for(self) -> None:
        for words, message in ((["--mode", "fast"], "'fast' is none of FreeToken's strategies offload, hybrid, cpu"), (["--mode", "cpu:auto/"], "empty split"),
                               (["--steps", "17"], "--steps at least 18"), (["--turns", "0"], "at least 1"), (["--rival-options", "[]"], "is an object")):
            with self.subTest(words=words), self.assertRaises(SystemExit) as ended, contextlib.redirect_stderr(io.StringIO()) as said:
                compare_freetoken.parse(words)
            self.assertEqual(ended.exception.code, 2)
            self.assertIn(message, said.getvalue())

    def test_both_get_the_same_memory_prompt_and_batches(self) -> None:
        arguments = compare_freetoken.parse(["--gpu-memory", "12.5", "--prompt", "4096", "--binary", "dsv4", "--rival-options", "{\"a\": 1}"])
        command = compare_freetoken.bench_command(arguments, Path("model"), "host=100%")
        options = dict(zip(command[2::2], command[3::2]))
        self.assertEqual({name: options[name] for name in ("--backend", "-m", "--prefill", "--depth", "--batch", "--experts", "--gpu-memory")},
                         {"--backend": "cuda", "-m": "model", "--prefill": "4096", "--depth": "0", "--batch": "1,4", "--experts": "host=100%", "--gpu-memory": "12.5"})
        self.assertEqual(compare_freetoken.load_request(arguments, "hybrid"),
                         {"load": {"strategy": "hybrid", "gpu_bytes": 12.5e9, "context": 8192, "sequences": 4, "options": {"a": 1}}})
        less = compare_freetoken.parse(["--gpu-memory", "14", "--rival-gpu-memory", "11.5"])
        self.assertEqual(compare_freetoken.load_request(less, "cpu")["load"]["gpu_bytes"], 11.5e9)
        self.assertEqual(compare_freetoken.turn_request(arguments, 3, 96), {"turn": {"prompt": 4096, "prompts": 3, "batches": [1, 4], "steps": 96}})

    def test_where_the_checkpoint_is(self) -> None:
        for words, place in (([], "a"), (["--checkpoints", str(self.folder / "b")], "b")):
            comparison = compare_freetoken.Comparison(compare_freetoken.parse(["--folder", str(self.folder / "a"), "--layers", "4", *words]))
            self.assertEqual((comparison.model, comparison.rival_model),
                             (self.folder / place / "flash-release-4-layers", self.folder / "a" / "flash-release-4-layers-freetoken"))

    def test_logits_of_release_are_the_gpus(self) -> None:
        arguments = compare_freetoken.parse(["--binary", "dsv4", "--gpu-memory", "9"])
        release, plain = (" ".join(compare_freetoken.logits_command(arguments, Path("m"), numerics, Path("i"), Path("o"))) for numerics in ("release", "plain"))
        self.assertEqual(release, "dsv4 logits --backend cuda --experts cached=100% --gpu-memory 9.0 -m m --numerics release --tokens i --output o")
        self.assertEqual(plain, "dsv4 logits --backend cpu -m m --numerics plain --tokens i --output o")

    def test_memory_ratio(self) -> None:
        self.assertAlmostEqual(freetoken_timing.memory_ratio(14e9, int(0.6e9), int(80.6e9)), 13.4 / 79.4)
        with self.assertRaisesRegex(ValueError, r"14\.00 GB of GPU memory wanted, 7\.40 GB are free"):
            freetoken_timing.memory_ratio(14e9, int(2e9), int(10e9))

    def test_gaps_are_of_full_batches(self) -> None:
        self.assertEqual(freetoken_timing.gaps([(1, 1), (2, 4), (3.5, 4), (4, 1), (6, 4)], 4), [1.5, 2.5])

    def test_a_program_that_fails_is_named_with_the_end_of_its_log(self) -> None:
        program = self.program("bench", "import sys; print('out'); print('no room', file=sys.stderr); sys.exit(int(sys.argv[1]))")
        log, output = self.folder / "log", self.folder / "out"
        machine.run([str(program), "0"], log, "dsv4 bench", output)
        self.assertEqual((log.read_text(), output.read_text()), ("no room\n", "out\n"))
        with self.assertRaisesRegex(EngineError, "dsv4 bench: exit code 3; the end of .*log:\nno room"):
            machine.run([str(program), "3"], log, "dsv4 bench", output)
        with self.assertRaisesRegex(EngineError, "dsv4 bench: .*No such file"):
            machine.run([str(self.folder / "absent")], log, "dsv4 bench")

    def test_planned(self) -> None:
        log = "info: memory plan\n  together                      13.99 GB\n\ninfo: memory plan of the host\n  together        23.21 GB\n"
        self.assertEqual(compare_freetoken.planned(log), "13.99 GB")
        self.assertEqual(compare_freetoken.planned(""), "an unknown amount")


class Machine(WithFolder):
    def check(self, smi: str, dsv4: str) -> str:
        self.program("nvidia-smi", smi) if smi else None
        with mock.patch.dict(os.environ, {"PATH": str(self.folder)}), contextlib.redirect_stdout(io.StringIO()), self.assertRaises(EngineError) as raised:
            machine.check_gpu(self.program("dsv4", dsv4))
        return str(raised.exception)

    def test_no_gpu(self) -> None:
        self.assertRegex(self.check("", "print()"), "^no GPU: nvidia-smi does not say what memory one has .*No such file")
        self.assertRegex(self.check("raise SystemExit(9)", "print()"), "^no GPU: .*exit status 9")
        self.assertRegex(self.check("print('No devices were found')", "print()"), "^no GPU: ")

    def test_no_cuda_backend(self) -> None:
        self.assertRegex(self.check("print(5)", "print('dsv4 0.1.0 (commit 1, backends reference cpu, this machine avx2)')"), "is without the CUDA backend: dsv4 0.1.0")
        self.assertRegex(self.check("print(5)", "raise SystemExit(1)"), "^no dsv4: ")


class Install(WithFolder):
    def wheel(self, name: str, version: str) -> None:
        """An empty one, in the folder `wheels`."""
        (self.folder / "wheels").mkdir(exist_ok=True)
        info = f"{name}-{version}.dist-info"
        with zipfile.ZipFile(self.folder / "wheels" / f"{name}-{version}-py3-none-any.whl", "w") as file:
            file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            file.writestr(f"{info}/RECORD", "")

    def test_the_pinned_version(self) -> None:
        self.assertRegex(FREETOKEN.pinned_version(), r"^\d+\.\d+\.\d+$")
        requirements = self.folder / "requirements.txt"
        requirements.write_text("freetoken>=1\n")
        with self.assertRaisesRegex(EngineError, "0 lines freetoken==VERSION, wanted 1"):
            rival_install.Rival("FreeToken", "freetoken", requirements).pinned_version()

    def test_no_wheel_and_a_wrong_one(self) -> None:
        with self.assertRaisesRegex(EngineError, "no wheel freetoken-0.2.1-.*whl among 0 wheels"):
            FREETOKEN.wheels_in(self.folder, "0.2.1")
        self.wheel("freetoken", "0.3.0")
        with self.assertRaisesRegex(EngineError, "freetoken-0.3.0-py3-none-any.whl, wanted version 0.2.1"):
            FREETOKEN.wheels_in(self.folder / "wheels", "0.2.1")

    def test_the_version_in_the_environment(self) -> None:
        python = self.program("python", "print('0.3.0')")
        with self.assertRaisesRegex(EngineError, "freetoken 0.3.0 in its environment, wanted 0.2.1"):
            rival_install.check_version(FREETOKEN, python, "0.2.1")
        rival_install.check_version(FREETOKEN, python, "0.3.0")
        with self.assertRaisesRegex(EngineError, "no freetoken in its environment: PackageNotFoundError: x"):
            rival_install.check_version(FREETOKEN, self.program("python", "raise SystemExit('PackageNotFoundError: x')"), "0.2.1")

    @unittest.skipUnless(importlib.util.find_spec("pip"), "this Python has no pip")
    def test_wheels_of_a_folder(self) -> None:
        self.wheel("freetoken", FREETOKEN.pinned_version())
        self.wheel("flashlib", "7")
        environment = self.folder / "environment"
        for _ in range(2):
            python = rival_install.install(FREETOKEN, environment, self.folder / "wheels")
        rival_install.check_version(FREETOKEN, python, FREETOKEN.pinned_version())
        with zipfile.ZipFile(self.folder / "wheels" / "flashlib-7-py3-none-any.whl", "w"):
            pass  # No wheel any more, and the environment is asked for from another folder.
        (self.folder / "wheels").rename(self.folder / "others")
        with self.assertRaisesRegex(EngineError, "pip could not install FreeToken:\n.*flashlib"):
            rival_install.install(FREETOKEN, environment, self.folder / "others")

    def test_what_it_asks_for_and_does_not_have(self) -> None:
        python = self.program("python", "print('freetoken 0.2.1 requires x, which is not installed.'); print('other 1 requires y'); raise SystemExit(1)")
        self.assertEqual(rival_install.unmet(FREETOKEN, python), ["freetoken 0.2.1 requires x, which is not installed."])
        self.assertEqual(rival_install.unmet(FREETOKEN, self.program("python", "raise SystemExit('No module named pip')")), ["pip check failed: No module named pip"])


class Files(WithFolder):
    def test_freetokens_files_stand_beside_links_to_the_checkpoint(self) -> None:
        before = sorted(path.name for path in TINY.iterdir())
        for _ in range(2):  # A second time it is made anew.
            folder = freetoken_files.provide(TINY, self.folder / "for-freetoken")
        self.assertEqual(sorted(path.name for path in TINY.iterdir()), before)
        self.assertEqual((folder / "model.safetensors").resolve(), TINY / "model.safetensors")
        weights = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
        self.assertEqual(weights["embed.weight"], "model.safetensors")
        self.assertNotIn("__metadata__", weights)
        config, told = json.loads((TINY / "config.json").read_text()), json.loads((folder / "inference" / "config.json").read_text())
        self.assertEqual((told["dim"], told["n_layers"], told["rope_factor"], told["expert_dtype"]),
                         (config["hidden_size"], config["num_hidden_layers"], config["rope_scaling"]["factor"], "fp4"))

    def test_a_key_that_is_missing_is_an_error(self) -> None:
        config = json.loads((TINY / "config.json").read_text())
        del config["hc_eps"], config["rope_scaling"]["beta_slow"]
        with self.assertRaisesRegex(ValueError, "no hc_eps, rope_scaling.beta_slow, which FreeToken wants"):
            freetoken_files.inference_config(config)
        with self.assertRaisesRegex(ValueError, "no .safetensors file"):
            freetoken_files.provide(self.folder, self.folder / "other")


class Logits(WithFolder):
    def table(self, rows: list[list[float]], descr: str = "<f4") -> Path:
        path = self.folder / "logits.npy"
        header = repr({"descr": descr, "fortran_order": False, "shape": (len(rows), len(rows[0]))}).encode() + b"\n"
        path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + b"".join(array("f", row).tobytes() for row in rows))
        return path

    def test_rows_of_a_file(self) -> None:
        path = self.table([[1, 2], [3, 4], [5, 6]])
        self.assertEqual([list(row) for row in logits_file.read_rows(path, 1, 2)], [[3, 4], [5, 6]])
        with self.assertRaisesRegex(ValueError, "3 rows, wanted 2 to 3"):
            logits_file.read_rows(path, 2, 2)
        with self.assertRaisesRegex(ValueError, "wanted float32 rows"):
            logits_file.read_rows(self.table([[1, 2]], "<f8"), 0, 1)

    def test_difference(self) -> None:
        release = [array("f", [3, 4]), array("f", [0, 2]), array("f", [1, 0])]
        plain = [array("f", [3, 5]), array("f", [0, 2]), array("f", [1, 1])]  # By 1/34, 0, 1/2 of theirs.
        theirs = [array("f", [3, 4]), array("f", [0, 3]), array("f", [0, 1])]  # By 0, 1/4, 2 of release's.
        seen = logits_file.difference(release, plain, theirs, 1.7)
        self.assertEqual((seen.rows, seen.median_nmse), (3, 0.25))
        self.assertAlmostEqual(seen.yardstick, 1 / 34)
        self.assertAlmostEqual(seen.top1, 2 / 3)
        self.assertFalse(seen.ok())
        self.assertIn("NOT THE SAME MODEL", str(seen))
        same = logits_file.difference(release, plain, release, 1.7)
        self.assertTrue(same.ok())
        self.assertIn("the same model", str(same))

    def test_what_is_not_finite_is_an_error(self) -> None:
        with self.assertRaisesRegex(ValueError, "row 1 of the logits is not finite"):
            logits_file.errors([array("f", [1, 1])] * 2, [array("f", [1, 1]), array("f", [1, float("nan")])])


class Turns(WithFolder):
    """The whole comparison, with programs in place of dsv4, nvidia-smi and FreeToken."""

    def engines(self, dsv4_exit: int = 0, good_runs: int = 0) -> compare_freetoken.Comparison:
        """dsv4 ends with an exit code once it has run so often."""
        report = json.dumps(dsv4_report(3000.0, 120.0, 280.0))
        dsv4 = self.program("dsv4", f"import os, sys; print({report!r}); print('  together  13.99 GB', file=sys.stderr)\n"
                            f"open({str(self.folder / 'runs')!r}, 'a').write('.')\n"
                            f"sys.exit({dsv4_exit} if os.path.getsize({str(self.folder / 'runs')!r}) > {good_runs} else 0)")
        turn = json.dumps(freetoken_turn(8.192, 0.01, 0.01))
        python = self.program("python", "import json, sys\nprint('{\"freetoken\": \"0.2.1\"}', flush=True)\nfor line in sys.stdin:\n"
                              f"  print({turn!r} if 'turn' in json.loads(line) else '{{\"slots\": 7}}', flush=True)")
        arguments = compare_freetoken.parse(["--binary", str(dsv4), "--folder", str(self.folder / "w"), "-m", str(TINY), "--only", "time",
                                             "--mode", "offload:auto/host=100%"])
        comparison = compare_freetoken.Comparison(arguments)
        comparison.python, comparison.env = python, dict(os.environ)
        comparison.start("test")
        comparison.engines[0].wait()
        self.addCleanup(comparison.stop)
        return comparison

    def test_tables_for_every_split(self) -> None:
        comparison = self.engines()
        with contextlib.redirect_stdout(io.StringIO()) as said:
            comparison.measure(comparison.arguments.modes[0], 1)
        self.assertIn("slots 7", said.getvalue())
        for split in ("auto", "host=100%"):
            self.assertRegex(said.getvalue(), rf"FreeToken offload was told 14 GB of GPU memory and took 15\.00, dsv4 --experts {split} "
                             r"\(cached=256\) was told 14 and planned 13\.99 GB; UNCHECKED: --only time; medians of 2 of 2 turns")
        found = comparison.report["modes"][0]["rows"]
        self.assertEqual([row["ratio"] for row in found["auto"]], [3, 1.2, 0.7])
        self.assertEqual(list(found), ["auto", "host=100%"])

    def test_a_checkpoint_that_was_not_finished_is_none(self) -> None:
        arguments = compare_freetoken.parse(["--binary", str(self.program("dsv4", "raise SystemExit(4)")), "-m", "none"])
        model, log = self.folder / "model", self.folder / "log"
        with self.assertRaisesRegex(EngineError, "no such checkpoint"):
            machine.provide_model(arguments, model, log)
        arguments.model = None
        with contextlib.redirect_stderr(io.StringIO()), self.assertRaisesRegex(EngineError, "dsv4 synth: exit code 4"):
            machine.provide_model(arguments, model, log)
        self.assertFalse(model.exists())
        arguments.binary = self.program("dsv4", "import os, sys; os.mkdir(sys.argv[2])")
        with contextlib.redirect_stderr(io.StringIO()):
            machine.provide_model(arguments, model, log, lambda unfinished: (unfinished / "more").write_text("1"))
        self.assertTrue((model / "more").exists())

    def test_a_turn_that_fails_is_an_error_and_no_table(self) -> None:
        comparison = self.engines(dsv4_exit=4)
        with contextlib.redirect_stdout(io.StringIO()) as said, self.assertRaisesRegex(EngineError, "dsv4 bench --experts auto: exit code 4"):
            comparison.measure(comparison.arguments.modes[0], 1)
        self.assertNotIn("tokens/s", said.getvalue())

    def test_complete_turns_before_a_failure_are_told(self) -> None:
        comparison = self.engines(dsv4_exit=4, good_runs=3)  # Of the second turn's two splits, one.
        with contextlib.redirect_stdout(io.StringIO()) as said, self.assertRaisesRegex(EngineError, "dsv4 bench --experts host=100%: exit code 4"):
            comparison.measure(comparison.arguments.modes[0], 1)
        self.assertEqual(said.getvalue().count("medians of 1 of 2 turns"), 2)


if __name__ == "__main__":
    unittest.main()
