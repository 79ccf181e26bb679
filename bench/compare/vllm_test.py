"""The comparison with vLLM, without vLLM and without a GPU: commands, files, figures, the order of turns, and what fails by name. Standard library only."""

from __future__ import annotations

import contextlib
import io
import json
import os
import struct
import sys
import unittest
from array import array
from pathlib import Path
from unittest import mock

import compare_vllm
import http_server
import vllm_files
import vllm_report
from engine_process import EngineError
from rival_install import VLLM
from test_folder import WithFolder

TINY = Path(__file__).resolve().parents[2] / "models" / "tiny"
# A server: --fail ends it at once, --mute never is ready. Its log-probabilities are those of ids, which dsv4's logits are too.
SERVER = """import http.server, json, sys
if "--fail" in sys.argv: sys.exit("no room")
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_GET(self):
        self.send_response(503 if "--mute" in sys.argv else 200); self.end_headers()
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        row = {f"token_id:{n}": -float(n % 97) for n in asked["logprob_token_ids"] + [96]}
        told = {"choices": [{"logprobs": {"tokens": ["token_id:96"] * asked["max_tokens"], "top_logprobs": [row] * asked["max_tokens"]}}]}
        self.send_response(200); self.end_headers(); self.wfile.write(json.dumps(told).encode())
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()"""


def report(rate: float = 100.0, first: float = 0.5, **more: object) -> dict:
    """Output of `dsv4 bench --server --json`, as far as it is read."""
    return {"requests": 9, "failed": 0, "refused": 0, "first_error": "", "answers_without_usage": 0, "steady_output_tokens_per_second": rate,
            "first_token_seconds": {"p50": first, "p95": 2 * first}, "inter_token_seconds": {"p50": 0.01, "p95": 0.02}, **more}


class Options(WithFolder):
    def test_rows_keep_their_order(self) -> None:
        self.assertEqual([row.name for row in compare_vllm.parse(["--rows", "mix-64,decode-8"]).rows], ["decode-8", "mix-64"])
        self.assertEqual(compare_vllm.parse([]).rows, vllm_report.ROWS)

    def test_what_cannot_be_asked_for(self) -> None:
        for words, message in ((["--rows", "decode-3"], "--rows: decode-3: wanted of decode-1, "), (["--turns", "0"], "--turns is at least 1"),
                               (["--seconds", "0"], "--seconds more than 0")):
            with self.subTest(words=words), self.assertRaises(SystemExit) as ended, contextlib.redirect_stderr(io.StringIO()) as said:
                compare_vllm.parse(words)
            self.assertEqual(ended.exception.code, 2)
            self.assertIn(message, said.getvalue())

    def test_both_at_once_where_there_is_room(self) -> None:
        arguments = compare_vllm.parse([])
        self.assertEqual(compare_vllm.share(arguments, int(40e9), 0, int(150e9)), (73.5e9, True))
        self.assertEqual(compare_vllm.share(arguments, int(60e9), 0, int(150e9)), (138e9, False))
        self.assertEqual(compare_vllm.share(compare_vllm.parse(["--alone"]), int(40e9), 0, int(150e9)), (138e9, False))
        self.assertEqual(compare_vllm.share(compare_vllm.parse(["--gpu-memory", "60"]), int(40e9), 0, int(150e9)), (60e9, True))
        self.assertEqual(compare_vllm.share(compare_vllm.parse(["--gpu-memory", "90"]), int(40e9), 0, int(150e9)), (90e9, False))

    def test_both_get_the_same_context_and_memory(self) -> None:
        arguments = compare_vllm.parse(["--binary", "dsv4", "--options", "--speculation off", "--rival-options", "--moe-backend humming"])
        ours = " ".join(compare_vllm.dsv4_command(arguments, Path("m"), 7, 60e9))
        theirs = " ".join(compare_vllm.vllm_command(arguments, Path("python"), Path("m"), 8, 0.4))
        self.assertRegex(ours, "^dsv4 serve -m m .*--port 7 --context 40960 --gpu-memory 60.00 .*--speculation off$")
        self.assertRegex(theirs, "^python -m vllm.entrypoints.cli.main serve m .*--port 8 --kv-cache-dtype fp8 --block-size 256 --max-model-len 40960 "
                         ".*--gpu-memory-utilization 0.4000 .*--moe-backend humming$")

    def test_loads(self) -> None:
        arguments = compare_vllm.parse(["--binary", "dsv4", "--seconds", "9"])
        row = next(row for row in vllm_report.ROWS if row.name == "mix-64")
        self.assertEqual(" ".join(compare_vllm.bench_command(arguments, row, "http://h:1", 5)),
                         "dsv4 bench --server http://h:1 --json --check off --seed 5 --streams 64 --input-tokens 2048 --output-tokens 256 --warm-up 4 "
                         "--seconds 9.0 --length-spread 0.9")

    def test_variables_say_otherwise(self) -> None:
        with mock.patch.dict(os.environ, {"TRITON_CACHE_DIR": "mine"}):
            env = compare_vllm.environment(self.folder)
        self.assertEqual((env["TRITON_CACHE_DIR"], env["DG_JIT_CACHE_DIR"]), ("mine", str((self.folder / "vllm-cache" / "deep_gemm").resolve())))
        self.assertEqual(env["PATH"].split(os.pathsep)[0], str(Path(sys.executable).parent))

    def test_wrong_wheels_are_refused(self) -> None:
        self.assertRegex(VLLM.pinned_version(), r"^\d+\.\d+\.\d+$")
        (self.folder / "vllm-0.33.0-py3-none-any.whl").touch()
        with self.assertRaisesRegex(EngineError, "vllm-0.33.0-py3-none-any.whl, wanted version 0.26.0 .of vllm_requirements.txt"):
            VLLM.wheels_in(self.folder, "0.26.0")


class Files(WithFolder):
    def test_every_id_has_a_text(self) -> None:
        path = self.folder / "tokenizer.json"
        path.write_bytes((TINY / "tokenizer.json").read_bytes())
        before = json.loads(path.read_text())
        vllm_files.fill_tokenizer(path, 6000)
        after = json.loads(path.read_text())
        self.assertEqual(sorted(after["model"]["vocab"].values()), list(range(6000)))
        self.assertLessEqual(before["model"]["vocab"].items(), after["model"]["vocab"].items())
        self.assertEqual([after[name] for name in ("added_tokens", "pre_tokenizer")], [before[name] for name in ("added_tokens", "pre_tokenizer")])
        self.assertEqual(after["model"]["merges"], before["model"]["merges"])
        path.write_text(json.dumps(before | {"model": before["model"] | {"vocab": {vllm_files.word(9): 1}}}))
        with self.assertRaisesRegex(ValueError, "is a token already"):
            vllm_files.fill_tokenizer(path, 6000)

    def test_links_and_a_tokenizer_config(self) -> None:
        before = sorted(path.name for path in TINY.iterdir())
        folder = vllm_files.provide(TINY, self.folder / "for-vllm")
        self.assertEqual(sorted(path.name for path in TINY.iterdir()), before)
        self.assertEqual((folder / "model.safetensors").resolve(), TINY / "model.safetensors")
        self.assertTrue(json.loads((folder / "tokenizer_config.json").read_text()))


class Report(unittest.TestCase):
    def test_a_ratio_is_of_medians(self) -> None:
        decode, prompt = (next(row for row in vllm_report.ROWS if row.name == name) for name in ("decode-8", "prompt-8k"))
        ours = [vllm_report.figures(report(rate, first)) for rate, first in ((300, 0.1), (100, 0.2), (200, 0.3))]
        theirs = [vllm_report.figures(report(rate, first)) for rate, first in ((100, 0.3), (100, 0.5), (400, 0.4))]
        self.assertEqual(vllm_report.Outcome(decode, ours, theirs).ratio(), 2)
        self.assertEqual(vllm_report.Outcome(prompt, ours, theirs).ratio(), 2)
        self.assertRegex(str(vllm_report.Outcome(decode, ours, theirs)), r"^decode-8 +2\.00x +200\.0 +100\.0 +200\.0 +400\.0 +400\.0 +800\.0 +20\.0 +20\.0$")
        self.assertRegex(str(vllm_report.Outcome(prompt, ours, theirs)), r"^prompt-8k +2\.00x +200\.0 +400\.0 +400\.0 +800\.0$")
        self.assertEqual(vllm_report.Outcome(decode, ours, theirs).as_json()["medians"]["vllm"]["tokens_per_second"], 100)

    def test_what_failed_is_no_figure(self) -> None:
        for more, message in (({"failed": 1, "first_error": "gone"}, "9 answers, 1 failed, 0 refused: gone"), ({"requests": 0}, "0 answers"),
                              ({"answers_without_usage": 2}, "2 of 9 answers say no number of tokens"),
                              ({"rate": 0}, "no token came")):
            with self.assertRaisesRegex(ValueError, message):
                vllm_report.figures(report(**more))

    def test_an_answer_of_the_check(self) -> None:
        top = {"token_id:5": -1.5, "token_id:7": -2.5, "token_id:9": -0.5}
        reply = {"choices": [{"logprobs": {"tokens": ["token_id:9"] * compare_vllm.CHECK_ANSWER, "top_logprobs": [top] * compare_vllm.CHECK_ANSWER}}]}
        tokens, rows = compare_vllm.read_answer(reply, [7, 5])
        self.assertEqual((tokens[0], list(rows[0]), list(compare_vllm.centred(rows[0]))), (9, [-2.5, -1.5], [-0.5, 0.5]))
        with self.assertRaisesRegex(ValueError, "no log-probability of 1 of 2 ids at token 1"):
            compare_vllm.read_answer(reply, [7, 6])


class Servers(WithFolder):
    """The whole comparison, with programs in place of dsv4, vLLM and nvidia-smi."""

    def comparison(self, wrong: float = 0.0, *words: str) -> compare_vllm.Comparison:
        """`wrong`: what dsv4's logits are off by, in turn up and down."""
        self.program("nvidia-smi", "print(150000)")
        vocabulary = json.loads((TINY / "config.json").read_text())["vocab_size"]
        rows = compare_vllm.CHECK_PROMPT + compare_vllm.CHECK_ANSWER - 1
        for numerics, off in (("release", wrong), ("plain", wrong + 0.1)):
            row = array("f", [(1000.0 if n == 96 else -float(n % 97)) + (off if n % 2 else -off) for n in range(vocabulary)])
            header = repr({"descr": "<f4", "fortran_order": False, "shape": (rows, vocabulary)}).encode() + b"\n"
            (self.folder / f"{numerics}.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + row.tobytes() * rows)
        self.program("python", SERVER)
        dsv4 = self.program("dsv4", "import shutil, sys, json\nfolder = " + repr(str(self.folder)) + "\nwords = sys.argv\n"
                            "if words[1] == '--version': print('dsv4 0.1.0 (backends cpu cuda)')\n"
                            "elif words[1] == 'logits': shutil.copy(f'{folder}/{words[words.index(\"--numerics\") + 1]}.npy', words[words.index('--output') + 1])\n"
                            "elif words[1] == 'bench':\n"
                            "    open(f'{folder}/loads', 'a').write(words[words.index('--server') + 1] + ' ' + words[words.index('--streams') + 1] + '\\n')\n"
                            f"    print(json.dumps({report()!r}))\n"
                            f"else:\n    exec({SERVER!r})")
        arguments = compare_vllm.parse(["--binary", str(dsv4), "--folder", str(self.folder / "w"), "-m", str(TINY), "--rows", "decode-1,served-512-16",
                                        "--start-seconds", "20", *words])
        comparison = compare_vllm.Comparison(arguments)
        self.addCleanup(comparison.stop)
        return comparison

    def run_it(self, comparison: compare_vllm.Comparison) -> str:
        python = self.folder / "python"
        path = os.pathsep.join([str(self.folder), os.environ["PATH"]])
        with mock.patch("rival_install.install", return_value=python), mock.patch.dict(os.environ, {"PATH": path}), \
                mock.patch("gpu_memory.used_and_total_of_first", return_value=(0, int(150e9))), contextlib.redirect_stdout(io.StringIO()) as said:
            comparison.prepare()
            comparison.run()
        return said.getvalue()

    def loads(self, comparison: compare_vllm.Comparison) -> list[str]:
        names = {f"http://127.0.0.1:{entry['command'][entry['command'].index('--port') + 1]}": name for name, entry in comparison.report["servers"].items()}
        lines = (self.folder / "loads").read_text().split("\n")[:-1]
        return [f"{names.get(line.split()[0], 'before')} {line.split()[1]}" for line in lines]

    def test_rows_are_taken_in_turns(self) -> None:
        comparison = self.comparison(0.01, "--turns", "2")
        said = self.run_it(comparison)
        self.assertEqual(self.loads(comparison)[len(vllm_report.COMPILING):], ["dsv4 1", "vLLM 1"] * 2 + ["dsv4 16", "vLLM 16"] * 2)
        self.assertIn("the same model", said)
        self.assertIn("decode-1           1.00x", said)
        self.assertEqual([row["ratio"] for row in comparison.report["rows"]], [1, 1])
        self.assertEqual(comparison.report["check"]["top1"], 1)

    def test_a_load_that_fails_is_told_and_the_next_row_runs(self) -> None:
        comparison = self.comparison(0.01, "--only", "time")
        failed = json.dumps(report(refused=3, first_error="status 429"))
        text = comparison.arguments.binary.read_text()
        comparison.arguments.binary.write_text(text.replace("    print(json", f"    if words[words.index('--streams') + 1] == '1': print({failed!r}); sys.exit(1)\n"
                                                            "    print(json"))
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.run_it(comparison)
        self.assertIn("compare: decode-1: dsv4: 9 answers, 0 failed, 3 refused: status 429", said.getvalue())
        self.assertTrue(comparison.failed)
        self.assertEqual([row.get("ratio") for row in comparison.report["rows"]], [None, 1])

    def test_one_server_at_a_time(self) -> None:
        comparison = self.comparison(0.01, "--alone")
        self.run_it(comparison)
        loads = self.loads(comparison)
        self.assertEqual([loads[0], loads[1], *loads[-2:]], ["dsv4 1", "dsv4 16", "vLLM 1", "vLLM 16"])
        self.assertEqual(comparison.servers, {})
        self.assertEqual(len(comparison.report["rows"]), 2)

    def test_logits_that_disagree_are_the_end(self) -> None:
        comparison = self.comparison(30.0)
        with self.assertRaisesRegex(EngineError, "the logits disagree, so nothing is timed"):
            self.run_it(comparison)
        self.assertFalse((self.folder / "loads").exists())
        self.assertNotIn("dsv4", comparison.report["servers"])

    def test_only_time_says_so(self) -> None:
        self.assertIn("UNCHECKED", self.run_it(self.comparison(30.0, "--only", "time")))

    def test_a_server_that_is_never_ready_is_named_with_the_end_of_its_log(self) -> None:
        with self.assertRaisesRegex(EngineError, "(?s)vLLM: its server ended with 1 before it was ready; the end of .*no room"):
            self.run_it(self.comparison(0.01, "--rival-options=--fail"))
        with self.assertRaisesRegex(EngineError, "vLLM: its server is not ready after 1 s"):
            self.run_it(self.comparison(0.01, "--rival-options=--mute", "--start-seconds", "1"))

    def test_a_long_wait_says_what_the_server_wrote_last(self) -> None:
        program = self.program("slow", "import time\nprint('compiles a kernel', flush=True)\ntime.sleep(600)")
        server = http_server.HttpServer("vLLM", [str(program)], http_server.free_port(), self.folder / "log")
        told = io.StringIO()
        with mock.patch.object(http_server, "SECONDS_OF_SILENCE", 0.5), contextlib.redirect_stderr(told), self.assertRaises(EngineError):
            server.wait(2)
        server.stop()
        self.assertIn("vLLM is not ready after", told.getvalue())
        self.assertIn("compiles a kernel", told.getvalue())

    def test_a_server_ends_with_its_engine(self) -> None:
        program = self.program("both", "import subprocess, sys, time\nchild = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
                               f"open({str(self.folder / 'child')!r}, 'w').write(str(child.pid))\ntime.sleep(600)")
        server = http_server.HttpServer("vLLM", [str(program)], http_server.free_port(), self.folder / "log")
        with self.assertRaises(EngineError):
            server.wait(1)
        server.stop()
        child = Path("/proc") / (self.folder / "child").read_text() / "stat"
        self.assertTrue(not child.exists() or child.read_text().split()[2] == "Z")


if __name__ == "__main__":
    unittest.main()
