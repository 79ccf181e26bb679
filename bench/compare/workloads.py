"""Timed workloads, and the lines of JSON in which both engines' timing programs get them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

WARM_UP_STEPS = 2  # Decode steps at the start of a turn that are not counted.


@dataclass(frozen=True)
class Workload:
    """`batch` sequences of `depth` tokens each take `tokens` more: all at once (prefill) or one by one (decode)."""

    kind: str  # "prefill" or "decode"
    tokens: int
    depth: int = 0
    batch: int = 1

    def __str__(self) -> str:
        if self.kind == "prefill":
            return f"prefill {self.tokens}"
        return f"decode, depth {self.depth}, batch {self.batch}"

    def request(self, vocab_size: int, state_stem: Path) -> dict:
        """Random ids, the same for both engines and in every turn. `state_stem`: a sequence of the depth is kept beside it."""
        if self.kind == "prefill":
            steps = [[random_ids(self.tokens, vocab_size, seed=1)]]
        else:
            ids = random_ids((WARM_UP_STEPS + self.tokens) * self.batch, vocab_size, seed=2)
            steps = [[[token] for token in ids[i:i + self.batch]] for i in range(0, len(ids), self.batch)]
        return {"depth_ids": random_ids(self.depth, vocab_size, seed=3), "state_file": f"{state_stem}.depth-{self.depth}",
                "sequences": self.batch, "steps": steps}

    def positions(self) -> int:
        """The tokens of a sequence at the end."""
        return self.depth + self.tokens + (0 if self.kind == "prefill" else WARM_UP_STEPS)

    def counted(self, seconds: list[float]) -> list[float]:
        """The steps of a turn that count."""
        return seconds if self.kind == "prefill" else seconds[WARM_UP_STEPS:]


def random_ids(count: int, vocab_size: int, seed: int) -> list[int]:
    """The same ids for the same arguments, on every machine."""
    generator = random.Random(seed)
    return [generator.randrange(vocab_size) for _ in range(count)]
