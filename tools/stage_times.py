"""Where the time of a decode step goes inside its launches, from a file of a build with DSV4_CUDA_STAGE_TIMES (src/backend/cuda/runtime/stage_times.h).

  cmake --preset cuda -B build/cuda_times -DDSV4_CUDA_STAGE_TIMES=ON && cmake --build build/cuda_times --target cuda_step_bench
  DSV4_CUDA_STAGE_TIMES=FILE build/cuda_times/cuda_step_bench flash,nvfp4-experts 12 8192 1 none 24
  python3 tools/stage_times.py FILE [--layers 12] [--copy-rate 4.27]

A line is a kind of launch: a kernel, its blocks and the bytes of weights that it reads. Times are microseconds, medians over its launches; all but the first
column of times count from the moment at which the launch in front had ended:

  adds      time from the end of the launch in front to its own: what the launch costs
  bytes     the time that its weights take at the copy rate
  input     all launches in front have ended, for its first block: the hop
  late      blocks that began later than that, and how late the last of them
  ready     activations are in shared memory, median of the blocks
  first     the first weights have been multiplied, median
  streamed  the last weights have been multiplied: median and last block
  met, ready, streamed   the same of a second phase
"""

import argparse
from collections import Counter, defaultdict
from statistics import median
from typing import NamedTuple

KERNELS = ["stream", "pair", "experts", "hyper-connection", "rows", "router", "attention", "indexer"]
BEGIN, ASKED, INPUT, READY, FIRST, STREAMED, MET, READY_2, STREAMED_2, END = range(10)


class Block(NamedTuple):
    times: list[int]
    kernel: int
    block: int
    num_blocks: int
    num_bytes: int


class Launch(NamedTuple):
    kind: tuple[int, int, int]  # Kernel, blocks, bytes.
    blocks: list[Block]
    end: int


def read(path: str) -> list[Block]:
    blocks = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            kernel, block, num_blocks, num_bytes, *times = map(int, line.split())
            blocks.append(Block(times, kernel, block, num_blocks, num_bytes))
    return blocks


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
                    of_launch = list(now.values())
                    launches.append(Launch((kernel, num_blocks, sum(b.num_bytes for b in of_launch)), of_launch,
                                           max(b.times[END] for b in of_launch)))
                now = {}
            if block is not None:
                now[block.block] = block
    return sorted(launches, key=lambda launch: launch.end)


def row(launch: Launch, before: int) -> dict[str, float]:
    def at(stage: int, choose) -> float:
        times = [b.times[stage] for b in launch.blocks if b.times[stage] > 0]
        return (choose(times) - before) / 1000 if times else float("nan")
    first_input = min(b.times[INPUT] for b in launch.blocks)
    late = [b.times[BEGIN] for b in launch.blocks if b.times[BEGIN] > first_input]
    return {"adds": (launch.end - before) / 1000, "input": at(INPUT, min), "late": len(late),
            "by": (max(late) - before) / 1000 if late else 0.0, "ready": at(READY, median), "first": at(FIRST, median),
            "streamed": at(STREAMED, median), "last": at(STREAMED, max), "met": at(MET, median), "ready2": at(READY_2, median),
            "streamed2": at(STREAMED_2, median), "last2": at(STREAMED_2, max)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--layers", type=int, default=0, help="layers of the model: adds a column of microseconds a layer")
    parser.add_argument("--copy-rate", type=float, default=4.27, help="TB/s (default: %(default)s)")
    options = parser.parse_args()
    launches = launches_of(read(options.file))
    rows: dict[tuple[tuple[int, int, int], int], list[dict[str, float]]] = defaultdict(list)
    for front, launch in zip(launches, launches[1:]):
        if launch.end - front.end < 1_000_000:  # Else a step ended between them.
            rows[launch.kind, front.kind[0]].append(row(launch, front.end))
    columns = ["input", "late", "by", "ready", "first", "streamed", "last", "met", "ready2", "streamed2", "last2"]
    steps = max(Counter(launch.kind for launch in launches if launch.kind[2] > 4e8).values(), default=0)
    print(f"{len(launches)} launches of {steps} steps" if steps else f"{len(launches)} launches")
    print(f"{'kernel':<17}{'behind':<17}{'blocks':>7}{'MB':>8}{'count':>7}{'adds':>7}{'bytes':>7}" + "".join(f"{c:>10}" for c in columns))
    total = total_bytes = 0.0
    for (kind, front_kernel), of_kind in sorted(rows.items(), key=lambda item: -sum(r["adds"] for r in item[1])):
        medians = {name: median(r[name] for r in of_kind) for name in of_kind[0]}
        by_bytes = kind[2] / options.copy_rate / 1e6
        total += sum(r["adds"] for r in of_kind)
        total_bytes += by_bytes * len(of_kind)
        print(f"{KERNELS[kind[0]]:<17}{KERNELS[front_kernel]:<17}{kind[1]:>7}{kind[2] / 1e6:>8.1f}{len(of_kind):>7}{medians['adds']:>7.1f}{by_bytes:>7.1f}"
              + "".join(f"{medians[c]:>10.1f}" if medians[c] == medians[c] else f"{'':>10}" for c in columns))
    if options.layers and steps:
        print(f"{total / steps / options.layers:.1f} us a layer, {total_bytes / steps / options.layers:.1f} by bytes of weights")


if __name__ == "__main__":
    main()
