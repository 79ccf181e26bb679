"""Demands that clang-tidy, with the repository's .clang-tidy, reports exactly the marked lines of violations.cc.

Exit status 0 as it should be, 1 not, 77 clang-tidy is not installed (CTest shows the test as skipped). With --require a missing clang-tidy
is a failure.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

TOOL = "clang-tidy-14"
SKIPPED = 77
VIOLATIONS = Path(__file__).resolve().parent / "violations.cc"


def wanted_reports() -> set[tuple[int, str]]:
    """(line, check) of every `want:` comment."""
    lines = VIOLATIONS.read_text().splitlines()
    found = ((number, re.search(r"// want: ([a-z-]+)", line)) for number, line in enumerate(lines, 1))
    return {(number, match.group(1)) for number, match in found if match}


def actual_reports() -> set[tuple[int, str]]:
    """(line, check) of every error; a plain warning does not count, for rules that only warn are off."""
    command = [TOOL, "--quiet", str(VIOLATIONS), "--", "-std=c++20"]
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    pattern = re.compile(r"violations\.cc:(\d+):\d+: error: .*\[([a-z-]+),-warnings-as-errors\]")
    return {(int(match.group(1)), match.group(2)) for match in pattern.finditer(output)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--require", action="store_true", help="a missing clang-tidy is a failure, not a skip")
    require = parser.parse_args().require
    if shutil.which(TOOL) is None:
        print(f"{TOOL} is not installed: the rules of .clang-tidy were not checked", file=sys.stderr)
        return 1 if require else SKIPPED
    wanted, actual = wanted_reports(), actual_reports()
    for line, check in sorted(wanted - actual):
        print(f"violations.cc:{line}: {check} should be reported and is not", file=sys.stderr)
    for line, check in sorted(actual - wanted):
        print(f"violations.cc:{line}: {check} is reported and should not be", file=sys.stderr)
    if not wanted:
        print("violations.cc has no `want:` comment", file=sys.stderr)
    return 1 if wanted != actual or not wanted else 0


if __name__ == "__main__":
    sys.exit(main())
