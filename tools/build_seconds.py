#!/usr/bin/env python3
"""Seconds that a build folder's compilations took, by module: of each unit from its start to its end, as ninja logged them. They are CPU seconds
where nothing else ran and no compiler cache helped, as in tools/check_bare_debian.sh.

    build_seconds.py [BUILD [LIMIT]]

BUILD is build/release by default. With LIMIT, exit status 1 when all together took more.
"""
import collections
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def main() -> int:
    """Prints the table."""
    build = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build/release"
    took = {}  # The last time that each was compiled counts.
    for line in (build / ".ninja_log").read_text(encoding="utf-8").splitlines()[1:]:
        begin, end, _, output, *_ = line.split("\t")
        if output.endswith(".o"):
            took[output] = (int(end) - int(begin)) / 1000
    modules = collections.defaultdict(list)
    for output, seconds in took.items():
        modules[output.split("/CMakeFiles/")[0]].append((seconds, output))
    for module, units in sorted(modules.items(), key=lambda item: -sum(seconds for seconds, _ in item[1])):
        longest, output = max(units)
        print(f"{module:<24}{len(units):5} units{sum(seconds for seconds, _ in units):9.1f} s   longest {longest:6.1f} s {pathlib.Path(output).name}")
    total = sum(took.values())
    print(f"{'together':<24}{len(took):5} units{total:9.1f} s")
    if len(sys.argv) > 2 and total > float(sys.argv[2]):
        print(f"more than {sys.argv[2]} s")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
