"""Where the time of a decode step goes inside its launches, from a file of a build with DSV4_CUDA_STAGE_TIMES (src/backend/cuda/device/sync/stage_times.h).

  cmake --preset cuda -B build/cuda_times -DDSV4_CUDA_STAGE_TIMES=ON && cmake --build build/cuda_times --target cuda_step_bench
  DSV4_CUDA_STAGE_TIMES=FILE build/cuda_times/cuda_step_bench flash,nvfp4-experts 12 8192 1 none 24
  python3 tools/stage_times.py FILE [--layers 12] [--copy-rate 4.27] [--blocks]

A line is a kind of launch: a kernel and the one in front of it, its blocks and the bytes of weights that it reads. Times are microseconds, medians over its
launches. All but the first two count from the moment at which the launch in front had ended:

  adds      time from the end of the launch in front to its own: what the launch costs
  bytes     the time that its weights take at the copy rate
  begin     the median block runs; the last one does
  input     all launches in front have ended, for the first block: the hop
  ready     activations are in shared memory, median of the blocks
  first     the first weights have been multiplied, median
  streamed  the last weights have been multiplied: median and last block
  met, ready, streamed   the same of a second phase

Notes cost some 20 % of a step, so that shares count and not sums. With --blocks: the slowest and the fastest blocks of launches that read 20 MB or more.
"""

import argparse
from collections import defaultdict
from statistics import fmean, median
from typing import Callable, NamedTuple

KERNELS = ["stream", "pair", "experts", "hyper-connection", "rows", "router", "attention", "indexer"]
BEGIN, ASKED, INPUT, READY, FIRST, STREAMED, MET, READY_2, STREAMED_2, END = range(10)
MOST_BETWEEN = 1_000_000  # ns: a step ended between launches that are farther apart.


class Block(NamedTuple):
    times: list[int]
    kernel: int
    block: int
    num_blocks: int
    sm: int
    num_bytes: int


class Kind(NamedTuple):
    kernel: int
    num_blocks: int
    num_bytes: int


class Launch(NamedTuple):
    kind: Kind
    blocks: list[Block]
    end: int


def read(path: str) -> list[Block]:
    """The blocks of the time of which every log still has notes."""
    blocks = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            kernel, block, num_blocks, sm, num_bytes, *times = map(int, line.split())
            blocks.append(Block(times, kernel, block, num_blocks, sm, num_bytes))
    inputs: dict[int, list[int]] = defaultdict(list)
    for block in blocks:
        inputs[block.kernel].append(block.times[INPUT])
    begin = max(min(times) for times in inputs.values())
    end = min(max(times) for times in inputs.values())
    return [block for block in blocks if begin <= block.times[INPUT] <= end]


def launches_of(blocks: list[Block]) -> list[Launch]:
    """A kernel's launches follow each other, so a block that comes again is the next launch's."""
    by_kernel: dict[tuple[int, int], list[Block]] = defaultdict(list)
    for block in blocks:
        by_kernel[block.kernel, block.num_blocks].append(block)
    launches = []
    for (kernel, num_blocks), of_kernel in by_kernel.items():
        of_kernel.sort(key=lambda block: block.times[INPUT])
        now: dict[int, Block] = {}
        for block in [*of_kernel, None]:
            if block is None or block.block in now:
                if len(now) == num_blocks:
                    kind = Kind(kernel, num_blocks, sum(b.num_bytes for b in now.values()))
                    launches.append(Launch(kind, list(now.values()), max(b.times[END] for b in now.values())))
                now = {}
            if block is not None:
                now[block.block] = block
    return sorted(launches, key=lambda launch: launch.end)


COLUMNS: dict[str, tuple[int, Callable[[list[int]], float]]] = {
    "begin": (BEGIN, median), "last": (BEGIN, max), "input": (INPUT, min), "ready": (READY, median), "first": (FIRST, median),
    "streamed": (STREAMED, median), "by": (STREAMED, max), "met": (MET, median), "ready2": (READY_2, median),
    "streamed2": (STREAMED_2, median), "by2": (STREAMED_2, max)}


def row(launch: Launch, before: int) -> dict[str, float]:
    result = {"adds": (launch.end - before) / 1000}
    for name, (stage, choose) in COLUMNS.items():
        times = [block.times[stage] for block in launch.blocks if block.times[stage] > 0]
        if times:
            result[name] = (choose(times) - before) / 1000
    return result


def print_blocks(kind: Kind, pairs: list[tuple[Launch, int]]) -> None:
    stage = STREAMED_2 if pairs[0][0].blocks[0].times[STREAMED_2] > 0 else STREAMED
    by_block: dict[int, list[tuple[float, ...]]] = defaultdict(list)
    for launch, before in pairs:
        for block in launch.blocks:
            by_block[block.block].append((*((block.times[s] - before) / 1000 for s in (BEGIN, FIRST, STREAMED, stage)), block.num_bytes / 1e3))
    means = sorted(([fmean(column) for column in zip(*values)], number) for number, values in by_block.items())
    means.sort(key=lambda item: -item[0][3])
    print(f"\n{KERNELS[kind.kernel]}, {kind.num_bytes / 1e6:.1f} MB: block, begin, first, streamed, all streamed (us), KB")
    for values, number in means[:8] + means[-8:]:
        print(f"  {number:>4}" + "".join(f"{value:>9.1f}" for value in values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--layers", type=int, default=0, help="layers of the model: adds a line with microseconds a layer")
    parser.add_argument("--copy-rate", type=float, default=4.27, help="TB/s (default: %(default)s)")
    parser.add_argument("--blocks", action="store_true", help="the slowest and the fastest blocks of large launches")
    options = parser.parse_args()
    launches = launches_of(read(options.file))
    rows: dict[tuple[Kind, int], list[dict[str, float]]] = defaultdict(list)
    large: dict[Kind, list[tuple[Launch, int]]] = defaultdict(list)
    for front, launch in zip(launches, launches[1:]):
        if launch.end - front.end < MOST_BETWEEN:
            rows[launch.kind, front.kind.kernel].append(row(launch, front.end))
            if launch.kind.num_bytes >= 2e7:
                large[launch.kind].append((launch, front.end))
    if options.blocks:
        for kind, pairs in sorted(large.items()):
            print_blocks(kind, pairs)
        return
    most_bytes = max(launch.kind.num_bytes for launch in launches)
    steps = sum(launch.kind.num_bytes == most_bytes for launch in launches)  # The head's.
    print(f"{len(launches)} launches of {steps} steps")
    print(f"{'kernel':<17}{'behind':<17}{'blocks':>6}{'MB':>8}{'count':>6}{'adds':>7}{'bytes':>7}" + "".join(f"{c:>9}" for c in COLUMNS))
    total = total_bytes = 0.0
    for (kind, front_kernel), of_kind in sorted(rows.items(), key=lambda item: -sum(r["adds"] for r in item[1])):
        by_bytes = kind.num_bytes / options.copy_rate / 1e6
        if kind.num_bytes < most_bytes:
            total += sum(r["adds"] for r in of_kind)
            total_bytes += by_bytes * len(of_kind)
        cells = "".join(f"{median(r[c] for r in of_kind):>9.1f}" if c in of_kind[0] else f"{'':>9}" for c in COLUMNS)
        print(f"{KERNELS[kind.kernel]:<17}{KERNELS[front_kernel]:<17}{kind.num_blocks:>6}{kind.num_bytes / 1e6:>8.1f}{len(of_kind):>6}"
              f"{median(r['adds'] for r in of_kind):>7.1f}{by_bytes:>7.1f}{cells}")
    if options.layers and steps:
        print(f"{total / steps / options.layers:.1f} us a layer without the head, {total_bytes / steps / options.layers:.1f} by bytes of weights")


if __name__ == "__main__":
    main()
