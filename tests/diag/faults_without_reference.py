#!/usr/bin/env python3
"""Findings of `dsv4 diagnose all` for wrong checkpoints (76 of V4, 191 of V4.1 with --v41) when there is nothing to compare with, and for healthy ones.

    ./dev build dsv4 && python3 tests/diag/faults_without_reference.py

prints a table: is the answer broken (three questions, greedy, beside the undamaged model), what says so, is the place right. Digests of
the files (check `files`) find every change of a file that is known, so they are counted by themselves. A foreign checkpoint has none. Exits with 1 when fewer than --wanted faults are found without digests, or when a healthy run has a finding.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ.setdefault("DSV4_BINARY", str(ROOT / "build/release/dsv4"))
sys.path += [str(ROOT / "tests/cli"), str(ROOT / "tests/diag")]
import v41_faults  # noqa: E402
import weight_faults  # noqa: E402
from dsv4_process import TINY, dsv4  # noqa: E402
from safetensors_copy import Copy  # noqa: E402

QUESTIONS = ("What is the capital of France?", "What is the capital of Sweden?", "What is 3 + 4?")
SYNTHETIC = {"tiny": ("bf16", "fp8", "release", "nvfp4-experts", "nvfp4", "nvfp4-ct"), "mini41": ("release", "nvfp4-experts")}
HEALTHY_PROMPTS = ("What is the capital of France?", "2 + 2 =", "写一首关于秋天的诗。", "\U0001F600\U0001F680 ???", "for (int i = 0; i < 10; ++i) f(i);", "a",
                   "Call me Ishmael.", "What is the capital of Peru?", "{\"a\": 1}", "Tell me a story about a cat and a dog.")
HEALTHY_OPTIONS = ((), ("--numerics", "plain"), ("--thinking-mode", "chat"), ("--temperature", "0.7", "--repetition-penalty", "1.3", "--seed", "11"), ("--system", "You are brief."),
                   ("--min-tokens", "0"), ("--min-tokens", "600"), ("--max-layers", "4"), ("--threads", "3"), ("--pass-tokens", "64"), ("--effort", "high"))


def answers(model):
    """Answers of the model to the questions; None where it says nothing."""
    said = []
    for question in QUESTIONS:
        process = dsv4("run", "-m", model, "--temperature", 0, "--thinking-mode", "chat", "--max-tokens", 12, "--json", question)
        said.append(json.loads(process.stdout)["content"] if process.returncode == 0 else None)
    return said


def diagnose(arguments, checks):
    """(refusal or None, [findings: check, headline, place]) of the checks."""
    findings = []
    for check in checks:
        process = subprocess.run([os.environ["DSV4_BINARY"], "diagnose", check, *map(str, arguments), "--json"], capture_output=True, text=True, check=False)
        if process.returncode not in (0, 1) or not process.stdout.strip():
            return process.stderr.strip().splitlines()[-1], findings
        findings += [report for report in json.loads(process.stdout)["checks"] if report["verdict"] == "finding"]
    return None, findings


def fault(source, faults, name, folder, checks, right):
    """(refusal or None, [findings], whether an answer is another) of a checkpoint with this fault."""
    model = folder / str(sorted(faults).index(name))
    copy = Copy(source, model)
    faults[name](copy)
    copy.save()
    refusal, findings = diagnose(("-m", model), checks)
    is_broken = right is not None and answers(model) != right
    shutil.rmtree(model)
    return refusal, findings, is_broken


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wanted", type=int, default=30, help="faults that must be found without digests")
    parser.add_argument("--v41", action="store_true", help="models/tiny-v41 in place of models/tiny")
    parser.add_argument("--only", default="", help="faults whose name matches")
    parser.add_argument("--quick", action="store_true", help="only those checks of `all` that can see a wrong file: files, residual, knowledge, indexer, router, checkpoint")
    parser.add_argument("--no-healthy", action="store_true")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2), help="checkpoints at a time")
    parser.add_argument("--no-answers", action="store_true", help="do not ask the damaged models")
    arguments = parser.parse_args()
    checks = ("files", "residual", "knowledge", "indexer", "router", "checkpoint") if arguments.quick else ("all",)
    source, faults = (TINY.parent / "tiny-v41", v41_faults.FAULTS) if arguments.v41 else (TINY, weight_faults.FAULTS)

    names = [name for name in faults if re.search(arguments.only, name)]
    right = None if arguments.no_answers else answers(source)
    found, by_digest, broken, found_broken = 0, 0, 0, 0
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        results = pool.map(lambda name: fault(source, faults, name, pathlib.Path(folder), checks, right), names)
        for name, (refusal, findings, is_broken) in zip(names, results):
            # A configuration that is not the release's any more says of no other file that it should be the release's.
            digest = any(report["check"] == "files" for report in findings)
            others = [report for report in findings if report["check"] != "files"]
            is_found = refusal is not None or bool(others)
            found += is_found
            by_digest += digest
            broken += is_broken
            found_broken += is_broken and is_found
            said = f"refused: {refusal}" if refusal else "; ".join(f"{report['check']}: {report['headline']}" for report in others) or "-"
            print(f"{name:48} {'broken' if is_broken else '      '} {'digest' if digest else '      '} {said[:170]}", flush=True)
        print(f"{found} of {len(names)} faults found without a reference and without digests; {by_digest} by digest; "
              f"{broken} break an answer, {found_broken} of these are found without digests")

        alarms, healthy = 0, 0
        if not arguments.no_healthy:
            runs = [("-m", source, prompt) for prompt in HEALTHY_PROMPTS] + [("-m", source, *options) for options in HEALTHY_OPTIONS]
            runs += [("-m", source, f"What is the capital of {country}?") for country in ("Chad", "Laos", "Cuba", "Fiji", "Iran")]
            shape = "mini41" if arguments.v41 else "tiny"
            for number, form in enumerate(SYNTHETIC[shape]):
                directory = pathlib.Path(folder) / form
                assert dsv4("synth", directory, "--shape", shape, "--format", form, "--layers", 4, "--seed", number).returncode == 0
                runs.append(("-m", directory))
            for run, (refusal, findings) in zip(runs, pool.map(lambda run: diagnose(run, checks), runs)):
                healthy += 1
                if refusal or findings:
                    alarms += 1
                    print(f"FALSE ALARM {run}: {refusal or findings[0]['headline']}", flush=True)
            print(f"{alarms} false alarms in {healthy} healthy runs")
    wanted = arguments.wanted if not arguments.only else 0
    return 0 if found >= wanted and alarms == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
