"""Plots of what `dsv4 bench --json` and `dsv4 diagnose --json` print, as SVG that a notebook shows by itself. Standard library only.

    plot.bench(json.load(file)).save("bench.svg")
    plot.table(document["checks"][0]["tables"][0], x="layer", y=["prefill RMS"], where={"stream": "0"})
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ._counted import counted

COLOURS = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2")
WIDTH, ROW, LABEL, MARGIN, HEIGHT = 760, 26, 330, 60, 300


class Plot(str):
    """The text of an SVG file."""

    def _repr_svg_(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"<Plot, {counted(len(self), 'byte')} of SVG>"

    def save(self, path: str | os.PathLike[str]) -> None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(self)


def _text(x: float, y: float, text: str, anchor: str = "start", colour: str = "#111") -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' fill='{colour}'>{escape(text)}</text>"


def _svg(height: float, parts: Sequence[str]) -> Plot:
    return Plot(f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height:.0f}' width='{WIDTH}' font-family='sans-serif' "
                f"font-size='12'><rect width='100%' height='100%' fill='#fff'/>{''.join(parts)}</svg>\n")


def bench(document: Mapping[str, Any]) -> Plot:
    """Tokens a second of every row, and how much of the machine's bytes or multiplications a second that is."""
    rows = document["rows"]
    if not rows:
        raise ValueError("plot.bench: the document has no rows")
    most = max(row["tokens_per_second"] for row in rows)
    parts = [_text(10, 18, f"{os.path.basename(document['model'])}, {counted(document['layers'], 'layer')}: tokens a second (share of the machine's rates)")]
    for i, row in enumerate(rows):
        y = 32 + i * ROW
        size = counted(row["tokens"], "token") if row["kind"] == "prefill" else f"batch {row['batch']}"
        length = (WIDTH - LABEL - 110) * row["tokens_per_second"] / most
        share = max(row.get("read_percent", 0), row.get("multiply_add_percent", 0))
        parts += [_text(LABEL - 8, y + 14, f"{row['backend']} {row['kind']}, {size}, depth {row['depth']}", "end"),
                  f"<rect x='{LABEL}' y='{y}' width='{length:.1f}' height='{ROW - 8}' fill='{COLOURS[row['kind'] != 'prefill']}'/>",
                  _text(LABEL + length + 6, y + 14, f"{row['tokens_per_second']:.4g} ({share:.0f} %)")]
    return _svg(40 + len(rows) * ROW, parts)


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def table(of: Mapping[str, Any], x: str, y: Sequence[str], where: Mapping[str, str] | None = None) -> Plot:
    """Columns of a table of `diagnose` as lines over another column; `where` keeps the rows whose cells are these."""
    columns = of["columns"]
    for name in [x, *y, *(where or {})]:
        if name not in columns:
            raise ValueError(f"plot.table: no column {name!r}, there are {', '.join(columns)}")
    rows = [row for row in of["rows"] if all(row[columns.index(name)] == cell for name, cell in (where or {}).items())]
    lines = {name: [(_number(row[columns.index(x)]), _number(row[columns.index(name)])) for row in rows] for name in y}
    points = [point for line in lines.values() for point in line if all(map(math.isfinite, point))]
    if not points:
        raise ValueError(f"plot.table: no numbers in {', '.join(y)} of the rows that were chosen ({len(rows)})")
    (left, right), (low, high) = ((min(values), max(values)) for values in zip(*points, strict=True))
    low = min(low, 0.0)

    def place(point: tuple[float, float]) -> tuple[float, float]:
        return (MARGIN + (WIDTH - 2 * MARGIN) * (point[0] - left) / ((right - left) or 1),
                HEIGHT - 40 - (HEIGHT - 90) * (point[1] - low) / ((high - low) or 1))

    parts = [_text(10, 18, of["title"]), _text(WIDTH / 2, HEIGHT - 8, x, "middle"),
             f"<path d='M{MARGIN} 50V{HEIGHT - 40}H{WIDTH - MARGIN}' fill='none' stroke='#999'/>"]
    for value in (low, (low + high) / 2, high):
        parts.append(_text(MARGIN - 6, place((left, value))[1] + 4, f"{value:.3g}", "end"))
    for value in (left, right):
        parts.append(_text(place((value, low))[0], HEIGHT - 24, f"{value:g}", "middle"))
    for i, (name, line) in enumerate(lines.items()):
        colour = COLOURS[i % len(COLOURS)]
        parts.append(_text(MARGIN + i * 150, 38, name, colour=colour))
        places = [place(point) for point in line if all(map(math.isfinite, point))]
        parts.append(f"<polyline points='{' '.join(f'{a:.1f},{b:.1f}' for a, b in places)}' fill='none' stroke='{colour}'/>")
        parts += [f"<circle cx='{a:.1f}' cy='{b:.1f}' r='2.5' fill='{colour}'/>" for a, b in places]
    return _svg(HEIGHT, parts)
