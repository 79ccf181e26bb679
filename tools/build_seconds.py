#!/usr/bin/env python3
"""Seconds that a build folder's compilations took, by module: of each unit from its start to its end, as ninja logged them. They are CPU seconds
where nothing else ran and no compiler cache helped, as in tools/check_bare_debian.sh.

    build_seconds.py [BUILD] [--target TARGET] [--measure [PATTERN]] [--write FILE]

BUILD is build/release by default. --target: of its units alone. --measure: compiles them once more, without a cache and beside the build's
objects, and counts CPU seconds, which a busy machine does not change much; of units whose name has PATTERN alone. --write: the table of
tests/house/build_seconds_test.py, from a build that had the machine and no cache.
"""
import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]


def units_of(build: pathlib.Path, target: str) -> list[str]:
    """The objects of a target, as ninja names them."""
    listed = subprocess.run(["ninja", "-C", build, "-t", "inputs", target], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if line.endswith(".o")]


def compilations(build: pathlib.Path) -> list[tuple[str, int, int]]:
    """Object, begin and end in milliseconds of its run of ninja, in the order in which they ended."""
    lines = [line.split("\t") for line in (build / ".ninja_log").read_text(encoding="utf-8").splitlines()[1:]]
    return [(line[3], int(line[0]), int(line[1])) for line in lines if line[3].endswith(".o")]


def seconds_of(build: pathlib.Path) -> dict[str, float]:
    """Seconds of each object that was compiled there, the last time."""
    return {output: (end - begin) / 1000 for output, begin, end in compilations(build)}


def seconds_of_one_run(build: pathlib.Path, outputs: set[str]) -> dict[str, float]:
    """Seconds of these objects, if one run of ninja compiled them all and none has compiled any of them since; else nothing."""
    found = [each for each in compilations(build) if each[0] in outputs]
    ends = [end for _, _, end in found]
    return seconds_of(build) if len(found) == len(outputs) and ends == sorted(ends) else {}


def measured_seconds(build: pathlib.Path, outputs: set[str] | None, pattern: str = "") -> dict[str, float]:
    """CPU seconds of each of these objects, or of all, compiled now as the build would, without a cache."""
    commands = {}
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        words = shlex.split(entry["command"])
        commands[words[words.index("-o") + 1]] = (words[pathlib.Path(words[0]).name == "ccache":], entry["directory"])
    wanted = sorted(output for output in commands if pattern in output and (outputs is None or output in outputs))
    with tempfile.TemporaryDirectory() as scratch:

        def seconds(output: str) -> float:
            words, folder = commands[output]
            place = pathlib.Path(scratch) / str(wanted.index(output))
            words[words.index("-o") + 1] = f"{place}.o"
            if "-MF" in words:
                words[words.index("-MF") + 1] = f"{place}.d"
            compiler = subprocess.Popen(words, cwd=folder, env={**os.environ, "CCACHE_DISABLE": "1"})  # noqa: S603
            _, status, usage = os.wait4(compiler.pid, 0)  # With what it started.
            compiler.returncode = os.waitstatus_to_exitcode(status)
            if compiler.returncode != 0:
                sys.exit(f"build_seconds: {output} does not compile")
            place.with_name(f"{place.name}.o").unlink()
            return usage.ru_utime + usage.ru_stime

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            return dict(zip(wanted, pool.map(seconds, wanted), strict=True))


def by_module(took: dict[str, float]) -> dict[str, list[tuple[float, str]]]:
    """Seconds and objects of each module, the longest module first. Kernels of an instruction set, of which a processor has some, are modules of
    their own: "src/backend/cpu, avx2"."""
    modules = collections.defaultdict(list)
    for output, seconds in took.items():
        tier = re.search(r"/dsv4_cpu_(\w+)\.dir/", output)
        modules[output.split("/CMakeFiles/")[0] + (f", {tier[1]}" if tier else "")].append((seconds, output))
    return dict(sorted(modules.items(), key=lambda item: -sum(seconds for seconds, _ in item[1])))


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("build", nargs="?", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--target")
    parser.add_argument("--measure", nargs="?", const="", metavar="PATTERN")
    parser.add_argument("--write", type=pathlib.Path)
    arguments = parser.parse_args()
    outputs = set(units_of(arguments.build, arguments.target)) if arguments.target else None
    if arguments.measure is None:
        took = {output: seconds for output, seconds in seconds_of(arguments.build).items() if outputs is None or output in outputs}
    else:
        took = measured_seconds(arguments.build, outputs, arguments.measure)
    modules = by_module(took)
    for module, units in modules.items():
        longest, output = max(units)
        print(f"{module:<24}{len(units):5} units{sum(seconds for seconds, _ in units):9.1f} s   longest {longest:6.1f} s {pathlib.Path(output).name}")
    print(f"{'together':<24}{len(took):5} units{sum(took.values()):9.1f} s")
    if arguments.write:
        table = {module: {"units": len(units), "seconds": round(sum(seconds for seconds, _ in units), 1)} for module, units in modules.items()}
        # Rows of instruction sets that this processor lacks stay as another measured them.
        known = json.loads(arguments.write.read_text(encoding="utf-8")) if arguments.write.exists() else {}
        table |= {module: row for module, row in known.items() if ", " in module and module not in table}
        lines = ",\n".join(f'  "{module}": {json.dumps(row)}' for module, row in table.items())
        arguments.write.write_text("{\n" + lines + "\n}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
