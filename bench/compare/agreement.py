"""Do two engines compute the same model? Logits of the same token ids, compared position by position."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from engine_process import EngineProcess
from workloads import random_ids

# The last tokens of the prompt are fed one by one, so that decoding is compared too.
DECODED = 16
# Both engines round differently by design. dsv4 rounds activations to FP8 in front of quantised weights (release) or not at all (plain).
# llama.cpp rounds activations to 8-bit integers and its cache to float16, and FP8 weights become Q8_0. How far such
# roundings carry depends on the model: with random weights a routed expert that changes places changes the token. So they are measured by
# the effect of the release's own roundings on the same model. They may be this much of that yardstick:
# docs/comparison.md has what the same model and mistakes come to. Against `release` the yardstick itself adds to that.
MAX_OF_YARDSTICK = {"release": 1.7, "plain": 0.7}


@dataclass(frozen=True)
class Agreement:
    numerics: str
    tokens: int
    top1: float  # Share of positions with the same most probable token.
    top5: float  # Share of positions where llama.cpp's token is among dsv4's five most probable.
    cosine: float  # Mean over positions.
    median_nmse: float  # Squared error over squared size, of the median position.
    worst_nmse: float
    yardstick: float  # Median error between dsv4's numerics.

    def ok(self) -> bool:
        return self.median_nmse <= MAX_OF_YARDSTICK[self.numerics] * self.yardstick

    def __str__(self) -> str:
        return (f"{self.numerics:8} top-1 {self.top1:6.1%}   top-5 {self.top5:6.1%}   cosine {self.cosine:.4f}   "
                f"NMSE median {self.median_nmse:.5f}, worst {self.worst_nmse:.3f}, of the yardstick "
                f"{self.median_nmse / self.yardstick:.2f}   "
                f"{'same model' if self.ok() else f'NOT THE SAME MODEL: bound {MAX_OF_YARDSTICK[self.numerics]}'}")


def errors(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Squared error over squared size of float32 logits [tokens, vocab], by position."""
    if ours.shape != theirs.shape or not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        raise ValueError(f"logits {ours.shape} and {theirs.shape} are not two finite tables of one shape")
    return ((ours - theirs) ** 2).sum(1) / (ours**2).sum(1)


def compare(ours: np.ndarray, theirs: np.ndarray, numerics: str, yardstick: float) -> Agreement:
    nmse = errors(ours, theirs)
    cosine = (ours * theirs).sum(1) / (np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1))
    pick = theirs.argmax(1)
    rank = (ours > np.take_along_axis(ours, pick[:, None], 1)).sum(1)
    return Agreement(numerics, len(ours), float((rank == 0).mean()), float((rank < 5).mean()), float(cosine.mean()),
                     float(np.median(nmse)), float(nmse.max()), yardstick)


def check(binary: Path, checkpoint: Path, rival: EngineProcess, tokens: int, threads: int, flags: list[str]) -> list[Agreement]:
    """Runs both engines on `tokens` random ids, dsv4 in both of its numerics and with `flags`."""
    ids = random_ids(tokens, rival.about["vocab_size"], seed=0)
    ours = {}
    with tempfile.TemporaryDirectory() as folder:
        ids_file, logits_file = Path(folder) / "ids", Path(folder) / "logits.npy"
        ids_file.write_text(" ".join(map(str, ids)))
        rival.answer({"logits_of": ids, "decoded": DECODED, "output": str(logits_file)}, f"the logits of {tokens} tokens")
        theirs = np.load(logits_file)
        for numerics in ("plain", "release"):
            subprocess.run([binary, "logits", "-m", checkpoint, "--numerics", numerics, "--threads", str(threads), "--tokens",
                            ids_file, "--decode-from", str(tokens - DECODED), "--output", logits_file, *flags], check=True)
            ours[numerics] = np.load(logits_file)
    yardstick = float(np.median(errors(ours["plain"], ours["release"])))
    return [compare(logits, theirs, numerics, yardstick) for numerics, logits in ours.items()]


def as_json(found: list[Agreement]) -> list[dict]:
    return [asdict(agreement) | {"ok": agreement.ok()} for agreement in found]
