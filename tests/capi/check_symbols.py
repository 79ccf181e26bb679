"""Compares what libdsv4.so exports with the committed list: check_symbols.py LIBRARY LIST."""

import subprocess
import sys


def main() -> int:
    """Prints what differs."""
    listing = subprocess.run(["nm", "-D", "--defined-only", sys.argv[1]], check=True, capture_output=True, text=True)
    got = {line.split()[-1] for line in listing.stdout.splitlines()}
    with open(sys.argv[2], encoding="utf-8") as file:
        wanted = set(file.read().split())
    for name in sorted(got ^ wanted):
        print(f"{name}: {'exported, not in the list' if name in got else 'in the list, not exported'}")
    return 1 if got != wanted else 0


if __name__ == "__main__":
    sys.exit(main())
