#!/usr/bin/env python3
"""A server under full load for minutes, against what the engine alone does in the same minutes. On a quiet machine:

    ./dev build && python3 tests/server/soak.py [--minutes 10] [--binary build/release/dsv4]

64 clients ask `models/tiny` (`dsv4 bench --server`, every answer compared with that of a quiet server) in legs of two minutes. It is one
server, whose memory is looked at every two seconds. Between the legs `dsv4 bench` measures decode at the same batch, because a shared
machine changes from minute to minute, and from second to second. A leg is compared with the engine just before and after it. Each is an
average over 240 steps, slow ones included, as the leg is an average. Prints a table of what was
measured, what is wanted and whether it holds; exits with 1 when one does not.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
STREAMS = 64
DEPTH = 400  # Tokens before a decode step of the engine alone: what a stream has on average, 280 of its prompt and half its answer.


def engine_tokens_per_second(binary):
    """The engine alone: decode at the same batch."""
    process = subprocess.run([binary, "bench", "-m", ROOT / "models/tiny", "--prefill", "none", "--depth", str(DEPTH), "--batch", str(STREAMS),
                              "--repeat", "60", "--rounds", "4", "--json"], capture_output=True, text=True, check=True)
    (row,) = (row for row in json.loads(process.stdout)["rows"] if row.get("batch") == STREAMS)
    return STREAMS / statistics.mean(row["seconds"])


class MemoryWatch(threading.Thread):
    """The server's resident memory, every two seconds."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.samples, self.ended = server, [], threading.Event()

    def run(self):
        while not self.ended.wait(2):
            self.samples.append(self.server.metric("process_resident_memory_bytes"))

    def growth(self):
        """From the second to the last quarter, as a share: the first fills the prefix cache."""
        quarter = max(1, len(self.samples) // 4)
        return statistics.median(self.samples[-quarter:]) / statistics.median(self.samples[quarter:2 * quarter]) - 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--binary", default=str(ROOT / "build/release/dsv4"))
    parser.add_argument("--output-tokens", type=int, default=256)
    arguments = parser.parse_args()
    os.environ["DSV4_BINARY"] = arguments.binary
    sys.path += [str(ROOT / "tests/cli"), str(ROOT / "tests/server")]
    from server_process import Server  # Reads DSV4_BINARY.

    legs = max(1, round(arguments.minutes / 2))
    alone, reports = [engine_tokens_per_second(arguments.binary)], []
    with Server("--context", 8192, "--prefix-cache-mib", 128) as server:
        watch = MemoryWatch(server)
        watch.start()
        for _ in range(legs):
            process = subprocess.run([arguments.binary, "bench", "--server", server.url, "--streams", str(STREAMS), "--seconds",
                                      f"{60 * arguments.minutes / legs:g}", "--output-tokens", str(arguments.output_tokens), "--json"],
                                     stdout=subprocess.PIPE, text=True, check=False)
            reports.append(json.loads(process.stdout))
            alone.append(engine_tokens_per_second(arguments.binary))
        watch.ended.set()
        watch.join()
    shares = [report["output_tokens_per_second"] / statistics.mean(alone[i:i + 2]) for i, report in enumerate(reports)]
    spreads = [report["inter_token_seconds"]["p99"] / report["inter_token_seconds"]["p50"] for report in reports]
    bad = sum(report[name] for report in reports for name in ("failed", "refused", "wrong_answers"))
    growth = watch.growth()
    mean_depth = arguments.output_tokens / 2 + statistics.mean(report["prompt_tokens_per_second"] * report["seconds"] / max(report["requests"], 1)
                                                               for report in reports)
    rows = [("answers that failed, were refused or differed", bad, "0", bad == 0),
            ("memory, last quarter against second", f"{100 * growth:+.1f} %", "<= 3 %", growth <= 0.03),
            ("time between tokens, p99 / p50, the worst leg", f"{max(spreads):.2f}", "<= 3", max(spreads) <= 3),
            ("output against the engine alone, median leg", f"{100 * statistics.median(shares):.1f} %", ">= 90 %", statistics.median(shares) >= 0.90)]

    def numbers(values, form):
        return " ".join(format(value, form) for value in values)
    print(f"{STREAMS} streams, {legs} legs of {reports[0]['seconds']:.0f} s: {sum(report['requests'] for report in reports)} answers of "
          f"{arguments.output_tokens} tokens; {100 * reports[-1]['share_of_prompt_reused']:.0f} % of the prompts reused; "
          f"mean depth {mean_depth:.0f} (engine alone: {DEPTH}); memory {watch.samples[-1] / 2 ** 20:.0f} MiB")
    print(f"tokens a second: engine alone {numbers(alone, '.0f')}; served {numbers((report['output_tokens_per_second'] for report in reports), '.0f')}; "
          f"shares {numbers(shares, '.3f')}")
    for what, got, wanted, holds in rows:
        print(f"{what:<48} {got!s:>10}   wanted {wanted:<8} {'yes' if holds else 'NO'}")
    return 0 if all(row[3] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
