"""Loads of both servers, and what the client saw of each: medians of the turns, and how many times faster dsv4 is."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True)
class Row:
    """A closed loop of `dsv4 bench --server`. Seconds fit 12 layers of Flash on an H200: a warm-up has the first answers of all streams."""

    name: str
    streams: int
    prompt: int
    answer: int
    warm_up: float
    seconds: float
    spread: float = 0.0

    def of_first_token(self) -> bool:
        """The time to the first token is what it is about, not a rate of tokens."""
        return self.answer == 1


ROWS = [
    *(Row(f"decode-{streams}", streams, 32, 256, warm_up, seconds)
      for streams, warm_up, seconds in ((1, 0.5, 2.5), (8, 1, 3), (64, 1.5, 3), (128, 2, 4), (256, 2.5, 4))),
    *(Row(f"prompt-{name}", 1, tokens, 1, 0.3, seconds) for name, tokens, seconds in (("512", 512, 2), ("8k", 8192, 3), ("32k", 32768, 4))),
    *(Row(f"served-512-{streams}", streams, 512, 128, warm_up, seconds)
      for streams, warm_up, seconds in ((1, 0.5, 3), (16, 1, 4), (64, 2, 4), (256, 4, 6))),
    *(Row(f"served-4096-{streams}", streams, 4096, 256, warm_up, seconds) for streams, warm_up, seconds in ((1, 0.5, 3), (16, 2, 5), (64, 6, 8))),
    Row("mix-64", 64, 2048, 256, 4, 8, spread=0.9),
]
# Rows in which vLLM compiles what it compiles while it runs, before anything is timed.
COMPILING = ["prompt-8k", "decode-256", "served-4096-16", "mix-64"]


@dataclass(frozen=True)
class Figures:
    tokens_per_second: float  # Output, while all streams asked.
    first_p50: float  # Seconds to the first token.
    first_p95: float
    next_p50: float  # Seconds between pieces of an answer: tokens, or what came together.
    next_p95: float
    answers: int


def trouble(report: dict) -> str:
    """Why a report of `dsv4 bench --server --json` has no figures; empty if it has."""
    if report["failed"] or report["refused"] or not report["requests"]:
        return f"{report['requests']} answers, {report['failed']} failed, {report['refused']} refused: {report['first_error']}"
    if report["answers_without_usage"]:
        return f"{report['answers_without_usage']} of {report['requests']} answers say no number of tokens"
    if not report["steady_output_tokens_per_second"] or not report["first_token_seconds"]["p50"]:
        return "no token came while all streams asked"
    return ""


def figures(report: dict) -> Figures:
    if why := trouble(report):
        raise ValueError(why)
    first, following = report["first_token_seconds"], report["inter_token_seconds"]
    return Figures(report["steady_output_tokens_per_second"], first["p50"], first["p95"], following["p50"], following["p95"], report["requests"])


def median(turns: list[Figures]) -> Figures:
    return Figures(*(statistics.median(getattr(turn, field.name) for turn in turns) for field in fields(Figures)))


@dataclass(frozen=True)
class Outcome:
    """A row's turns of both."""

    row: Row
    dsv4: list[Figures]
    vllm: list[Figures]

    def ratio(self) -> float:
        """How many times faster dsv4 is."""
        ours, theirs = median(self.dsv4), median(self.vllm)
        if self.row.of_first_token():
            return theirs.first_p50 / ours.first_p50
        return ours.tokens_per_second / theirs.tokens_per_second

    def __str__(self) -> str:
        ours, theirs = median(self.dsv4), median(self.vllm)
        rates = f"{'':>21}" if self.row.of_first_token() else f"{ours.tokens_per_second:11.1f}{theirs.tokens_per_second:10.1f}"
        following = "" if self.row.of_first_token() else f"{1e3 * ours.next_p95:11.1f}{1e3 * theirs.next_p95:10.1f}"
        return (f"{self.row.name:16}{self.ratio():7.2f}x{rates}{1e3 * ours.first_p50:13.1f}{1e3 * theirs.first_p50:10.1f}"
                f"{1e3 * ours.first_p95:13.1f}{1e3 * theirs.first_p95:10.1f}{following}").rstrip()

    def as_json(self) -> dict:
        return asdict(self) | {"ratio": self.ratio(), "medians": {"dsv4": asdict(median(self.dsv4)), "vllm": asdict(median(self.vllm))}}


def head() -> str:
    return (f"{'':16}{'':8}{'output tokens/s':>21}{'first token p50, ms':>23}{'p95, ms':>23}{'next token p95, ms':>21}\n"
            f"{'':16}{'ratio':>8}{'dsv4':>11}{'vLLM':>10}{'dsv4':>13}{'vLLM':>10}{'dsv4':>13}{'vLLM':>10}{'dsv4':>11}{'vLLM':>10}")
