#!/usr/bin/env python3
"""What the hash of every weight's bytes costs while a model loads (src/io/content_digest.h): `dsv4 serve` until it listens, with --prefix-cache-dir, which
wants the hash, and without, in turns.

  load_beside_digest.py DSV4 MODEL [--rounds 9] [--cold] [serve's arguments...]

Prints the least seconds of both ways, and the least CPU seconds of the thread that loads: others that use the machine can only make them more. --cold:
the files leave the page cache first."""
import argparse
import os
import pathlib
import re
import subprocess
import tempfile
import time


def forget(model):
    for path in pathlib.Path(model).rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def load(args, more):
    """(seconds, CPU seconds of its first thread) from the start until it says that it serves."""
    if args.cold:
        forget(args.model)
    begin = time.perf_counter()
    process = subprocess.Popen([args.dsv4, "serve", "-m", args.model, "--port", "0", *more, *args.arguments], stderr=subprocess.PIPE, text=True)
    lines = []
    for line in process.stderr:
        lines.append(line)
        if re.search(r" serves .* at ", line):
            break
    else:
        raise SystemExit("".join(lines))
    seconds = time.perf_counter() - begin
    busy = int(pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/schedstat").read_text().split()[0]) / 1e9
    process.kill()
    process.wait()
    return seconds, busy


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dsv4")
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cold", action="store_true")
    args, args.arguments = parser.parse_known_args()
    without, beside = [], []
    with tempfile.TemporaryDirectory() as folder:
        ways = [(without, []), (beside, ["--prefix-cache-dir", folder])]
        load(args, ways[1][1])  # Makes the folder's secret, which waits for the disk.
        for turn in range(args.rounds):
            for seconds, more in ways if turn % 2 == 0 else reversed(ways):
                seconds.append(load(args, more))
    for name, seconds in (("seconds until it serves", 0), ("CPU seconds of the thread that loads", 1)):
        least = [min(load[seconds] for load in loads) for loads in (without, beside)]
        print(f"{name}: {least[0]:.3f} without the hash, {least[1]:.3f} beside it; ratio {least[1] / least[0]:.3f} in {args.rounds} turns")


if __name__ == "__main__":
    main()
