"""A step as the device went through it, from a file that build/cuda/libkernel_timeline.so wrote (bench/cuda/kernel_timeline.cc).

  python3 tools/kernel_timeline.py FILE             the kinds of steps, and the median one of the commonest kind, kernel by kernel
  python3 tools/kernel_timeline.py FILE --kind N    of the kind numbered N
  python3 tools/kernel_timeline.py FILE --totals    by kernel instead: how often, and what it adds

A step begins with a kernel whose name has `--first` in it. A kernel adds the time from the end of all kernels before it to its own end.
Kernels may start early and wait, so that their durations overlap and say little.
"""

import argparse
import sys
from collections import defaultdict
from typing import NamedTuple


class Run(NamedTuple):
    begin: int  # ns
    end: int
    name: str
    grid: str


def read(path: str) -> list[Run]:
    runs = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            begin, end, name, grid = line.split()
            runs.append(Run(int(begin), int(end), name, grid))
    return sorted(runs)


def steps_by_kind(runs: list[Run], first: str) -> list[list[list[Run]]]:
    """Steps of as many kernels of the same first grid are of a kind."""
    begins = [i for i, run in enumerate(runs) if first in run.name]
    kinds: dict[tuple[int, str], list[list[Run]]] = defaultdict(list)
    for begin, end in zip(begins, begins[1:] + [len(runs)]):
        kinds[end - begin, runs[begin].grid].append(runs[begin:end])
    return list(kinds.values())


def microseconds(step: list[Run]) -> float:
    return (max(run.end for run in step) - step[0].begin) / 1000


def added(step: list[Run]) -> list[float]:
    result, so_far = [], step[0].begin
    for run in step:
        result.append(max(0, run.end - so_far) / 1000)
        so_far = max(so_far, run.end)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--first", default="EmbedKernel", help="a step's first kernel (default: %(default)s)")
    parser.add_argument("--kind", type=int, help="which kind of step (default: the commonest)")
    parser.add_argument("--totals", action="store_true", help="sums by kernel")
    options = parser.parse_args()
    kinds = steps_by_kind(read(options.file), options.first)
    if not kinds:
        sys.exit(f"{options.file}: no kernel's name has {options.first!r} in it")
    for number, steps in enumerate(kinds):
        times = sorted(map(microseconds, steps))
        print(f"kind {number}: {len(steps[0])} kernels, grid {steps[0][0].grid}, {len(steps)} steps, us best {times[0]:.0f} "
              f"median {times[len(times) // 2]:.0f} worst {times[-1]:.0f}")
    if options.kind is not None and not 0 <= options.kind < len(kinds):
        sys.exit(f"{options.file}: no kind {options.kind}, there are {len(kinds)}")
    steps = max(kinds, key=len) if options.kind is None else kinds[options.kind]
    step = sorted(steps, key=microseconds)[len(steps) // 2]
    if options.totals:
        totals: dict[str, list[float]] = defaultdict(list)
        for run, adds in zip(step, added(step)):
            totals[run.name].append(adds)
        for name, adds in sorted(totals.items(), key=lambda total: -sum(total[1])):
            print(f"{sum(adds):9.1f} us {len(adds):4d} times  {name}")
        return
    print("   begin      end     adds us  kernel, grid")
    for run, adds in zip(step, added(step)):
        begin, end = ((time - step[0].begin) / 1000 for time in (run.begin, run.end))
        print(f"{begin:8.1f} {end:8.1f} {adds:8.1f}     {run.name} {run.grid}")


if __name__ == "__main__":
    main()
