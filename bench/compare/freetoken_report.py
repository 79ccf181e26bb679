"""Tokens a second of both engines' turns, and how many times faster dsv4 is. Every row needs both."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

BATCHES = (1, 4)
WARM_UP_STEPS = 16  # Of FreeToken's decode steps, at the start of a turn; dsv4 bench has its own.
GOALS = {"prefill": 3.0, "decode, batch 1": 1.5}


@dataclass(frozen=True)
class Row:
    workload: str
    dsv4: list[float]  # Tokens a second, by turn.
    freetoken: list[float]

    def ratio(self) -> float:
        return statistics.median(self.dsv4) / statistics.median(self.freetoken)

    def ratio_of_turns(self) -> tuple[float, float]:
        """The smallest and the largest of two turns that followed each other."""
        ratios = [ours / theirs for ours, theirs in zip(self.dsv4, self.freetoken, strict=True)]
        return min(ratios), max(ratios)

    def goal(self) -> float | None:
        return GOALS.get("prefill" if self.workload.startswith("prefill") else self.workload)

    def __str__(self) -> str:
        goal = ""
        if self.goal():
            goal = f"   goal {self.goal()}x: {'reached' if self.ratio() >= self.goal() else 'MISSED'}"
        low, high = self.ratio_of_turns()
        return (f"{self.workload:20}{statistics.median(self.dsv4):12.1f}{statistics.median(self.freetoken):12.1f}{self.ratio():9.2f}x   "
                f"{f'{low:.2f} to {high:.2f}':14}{goal}").rstrip()

    def as_json(self) -> dict:
        return {"workload": self.workload, "dsv4_tokens_per_second": self.dsv4, "freetoken_tokens_per_second": self.freetoken,
                "ratio": self.ratio(), "ratio_of_turns": list(self.ratio_of_turns()), "goal": self.goal()}


def workloads(prompt: int) -> list[str]:
    return [f"prefill {prompt}", *(f"decode, batch {batch}" for batch in BATCHES)]


def rates_of_freetoken(turn: dict, prompt: int) -> list[float]:
    """By workload, of an answer of freetoken_timing.py."""
    rates = [prompt / statistics.median(turn["prefill_seconds"])]
    for batch in BATCHES:
        seconds = turn["decode_seconds"][str(batch)][WARM_UP_STEPS:]
        if not seconds:
            raise ValueError(f"FreeToken: fewer than {WARM_UP_STEPS + 2} decode steps of {batch} sequences")
        rates.append(batch / statistics.median(seconds))
    return rates


def rates_of_dsv4(report: dict, prompt: int) -> list[float]:
    """By workload, of what dsv4 bench --json prints."""
    rates = []
    for kind, batch, tokens in [("prefill", 1, prompt), *(("decode", batch, 1) for batch in BATCHES)]:
        found = [row["tokens_per_second"] for row in report["rows"] if (row["kind"], row["batch"], row["tokens"]) == (kind, batch, tokens)]
        if len(found) != 1:
            raise ValueError(f"dsv4 bench: {len(found)} rows {kind} of {tokens} tokens and batch {batch}, wanted 1")
        rates += found
    return rates


def rows(prompt: int, dsv4: list[list[float]], freetoken: list[list[float]]) -> list[Row]:
    """By workload, of the rates of as many turns of either."""
    if not dsv4 or len(dsv4) != len(freetoken):
        raise ValueError(f"{len(dsv4)} turns of dsv4 and {len(freetoken)} of FreeToken, wanted as many, and one at least")
    return [Row(workload, [turn[i] for turn in dsv4], [turn[i] for turn in freetoken]) for i, workload in enumerate(workloads(prompt))]


def table(found: list[Row]) -> str:
    head = f"{'tokens/s':20}{'dsv4':>12}{'FreeToken':>12}{'ratio':>10}   turn by turn"
    return "\n".join([head, *map(str, found)])
