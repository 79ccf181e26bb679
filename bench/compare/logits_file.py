"""Float32 logits in .npy files, compared with Python's standard library alone."""

from __future__ import annotations

import ast
import math
import statistics
import struct
from array import array
from dataclasses import dataclass
from pathlib import Path

MAGIC = b"\x93NUMPY"
HEADER_AT = {1: 10, 2: 12}  # By version of the format.


def read_rows(path: Path, first: int, count: int) -> list[array]:
    """Rows of a table [rows, columns], which has to have them."""
    with path.open("rb") as file:
        start = file.read(12)
        if start[:6] != MAGIC or start[6] not in HEADER_AT:
            raise ValueError(f"{path}: no .npy file of version 1 or 2")
        at = HEADER_AT[start[6]]
        (length,) = struct.unpack_from("<H" if at == 10 else "<I", start, 8)
        file.seek(at)
        header = ast.literal_eval(file.read(length).decode("latin1"))
        shape = header["shape"]
        if header["descr"] != "<f4" or header["fortran_order"] or len(shape) != 2:
            raise ValueError(f"{path}: {header}, wanted float32 rows")
        if first < 0 or first + count > shape[0]:
            raise ValueError(f"{path}: {shape[0]} rows, wanted {first} to {first + count - 1}")
        file.seek(at + length + first * shape[1] * 4)
        rows = []
        for _ in range(count):
            row = array("f")
            row.fromfile(file, shape[1])
            rows.append(row)
        return rows


def errors(ours: list[array], theirs: list[array]) -> list[float]:
    """Squared error over squared size of ours, by row."""
    found = []
    for mine, other in zip(ours, theirs, strict=True):
        error = sum((a - b) * (a - b) for a, b in zip(mine, other, strict=True))
        found.append(error / sum(a * a for a in mine))
        if not math.isfinite(found[-1]):
            raise ValueError(f"row {len(found) - 1} of the logits is not finite")
    return found


def same_first_choice(ours: list[array], theirs: list[array]) -> float:
    """The share of rows with the same most probable token."""
    return statistics.mean(mine.index(max(mine)) == other.index(max(other)) for mine, other in zip(ours, theirs, strict=True))


@dataclass(frozen=True)
class Difference:
    """Distance of the rival's logits from dsv4's, beside a yardstick: the change by the release's own roundings in dsv4."""

    rows: int
    median_nmse: float
    ninth_decile: float
    top1: float
    yardstick: float
    most_of_yardstick: float

    def ok(self) -> bool:
        return self.median_nmse <= self.most_of_yardstick * self.yardstick

    def __str__(self) -> str:
        return (f"{self.rows} positions: NMSE median {self.median_nmse:.5f}, ninth decile {self.ninth_decile:.5f}, "
                f"{self.median_nmse / self.yardstick:.2f} of the yardstick; the same first choice at {self.top1:.0%}: "
                f"{'the same model' if self.ok() else f'NOT THE SAME MODEL: bound {self.most_of_yardstick}'}")


def difference(release: list[array], plain: list[array], theirs: list[array], most_of_yardstick: float) -> Difference:
    found = errors(release, theirs)
    yardstick = statistics.median(errors(plain, release))
    return Difference(len(found), statistics.median(found), sorted(found)[int(0.9 * (len(found) - 1))], same_first_choice(release, theirs),
                      yardstick, most_of_yardstick)
