#!/usr/bin/env python3
"""Draws the pictures of the documents and the README's table of figures. The standard library is all it needs.

docs/pictures/architecture.svg   from the module table of docs/architecture.md
docs/pictures/speed.svg          from bench/figures.json, "plot"
README.md                        between its `machines` and `figures` comments, from bench/figures.json, "machines" and "table"

`--check` writes nothing and exits 1 with the names of files that are out of date.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from html import escape
from pathlib import Path

import check_includes

ROOT = Path(__file__).resolve().parents[1]
FONT = "font-family='Helvetica, Arial, sans-serif'"
MARK = "<!-- {}: {} -->"

# A module in few words, and the colour of its kind.
TEXT, TOKENS, NUMBERS, FILES, BASE = "#dbeafe", "#dcfce7", "#fef3c7", "#ede9fe", "#e5e7eb"
CAPTIONS = {
    "apps": ("the dsv4 binary", TEXT),
    "server": ("HTTP, OpenAI, Anthropic", TEXT),
    "session": ("text in, deltas out", TEXT),
    "diag": ("falsifying checks", NUMBERS),
    "engine": ("scheduler, step loop", TOKENS),
    "convert": ("other weight formats", FILES),
    "grammar": ("JSON schema masks", TEXT),
    "model": ("graph, placement", NUMBERS),
    "backend/reference": ("the judge", NUMBERS),
    "backend/cpu": ("AVX2, AVX-512", NUMBERS),
    "backend/cuda": ("Hopper kernels", NUMBERS),
    "ops": ("contracts of ops", NUMBERS),
    "kv": ("KV cache of a sequence", TOKENS),
    "tokenizer": ("BPE both ways", TEXT),
    "chat": ("V4 chat grammar", TEXT),
    "io": ("safetensors, mmap", FILES),
    "comm": ("ranks, collectives", BASE),
    "tensor": ("views, memory", BASE),
    "formats": ("FP8, MXFP4, NVFP4", FILES),
    "sampling": ("logits to token", TOKENS),
    "speculation": ("drafts of the text", TOKENS),
    "base": ("Status, threads, log", BASE),
}
PATH = [("messages", "chat"), ("prompt text", "tokenizer"), ("token ids", "engine"), ("ragged step", "model, ops, backend"),
        ("logits", "sampling"), ("token id", "tokenizer, chat"), ("text, tool calls", "")]


def text(x: float, y: float, words: str, size: int = 12, more: str = "") -> str:
    """One line of text."""
    return f"<text x='{x:g}' y='{y:g}' font-size='{size}' {more}>{escape(words)}</text>"


def box(x: float, y: float, width: float, height: float, colour: str) -> str:
    """A rounded rectangle."""
    return f"<rect x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}' rx='5' fill='{colour}' stroke='#6b7280' stroke-width='0.8'/>"


def svg(width: int, height: int, parts: list[str]) -> str:
    """The whole picture, on white so that it can be read on any page."""
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}' {FONT} fill='#111827'>"
    arrow = ("<defs><marker id='arrow' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' markerHeight='7' orient='auto'>"
             "<path d='M0,0 L8,4 L0,8 z' fill='#374151'/></marker></defs>")
    return "\n".join([head, arrow, f"<rect width='{width}' height='{height}' fill='white'/>", *parts, "</svg>"]) + "\n"


def draw_architecture() -> str:
    """The way of a prompt on top; below it the modules by level: an include goes down, never up."""
    width, parts = 900, []
    step = (width - 40) / len(PATH)
    for number, (data, module) in enumerate(PATH):
        x = 20 + number * step
        parts.append(box(x, 24, step - 34, 28, "#ffffff"))
        parts.append(text(x + (step - 34) / 2, 42, data, 11, "text-anchor='middle'"))
        if module:
            parts.append(f"<path d='M{x + step - 32:g},38 H{x + step - 3:g}' stroke='#374151' marker-end='url(#arrow)'/>")
            parts.append(text(x + step - 18, 66, module, 10, "text-anchor='middle' fill='#4b5563' font-style='italic'"))
    modules = check_includes.read_modules(ROOT)
    y = 84
    levels = sorted({module.level for module in modules.values()}, reverse=True)
    for level in levels:
        names = [name for name, module in modules.items() if module.level == level]
        parts.append(text(20, y + 27, str(level), 13, "fill='#9ca3af'"))
        room = (width - 60) / len(names)
        for number, name in enumerate(names):
            caption, colour = CAPTIONS.get(name, ("", BASE))
            x = 40 + number * room
            parts.append(box(x, y, room - 10, 42, colour))
            parts.append(text(x + (room - 10) / 2, y + 18, name, 13, "text-anchor='middle' font-weight='bold'"))
            parts.append(text(x + (room - 10) / 2, y + 33, caption, 10, "text-anchor='middle' fill='#374151'"))
        y += 52
    legend = [("text", TEXT), ("tokens and state", TOKENS), ("numbers", NUMBERS), ("files and formats", FILES), ("ground", BASE)]
    for number, (words, colour) in enumerate(legend):
        parts.append(box(40 + number * 140, y + 2, 14, 14, colour))
        parts.append(text(60 + number * 140, y + 13, words, 11))
    parts.append(text(width - 20, y + 13, "an include goes down, never up", 11, "text-anchor='end' fill='#4b5563'"))
    return svg(width, y + 28, parts)


def draw_speed(panels: list[dict]) -> str:
    """Bars with the goal as a line across each; the panel's bound, or the rival's speed, is a dashed line."""
    width, left, right, parts = 900, 270, 70, []
    y = 14
    for panel in panels:
        def place(value: float, panel: dict = panel) -> float:
            room = width - left - right
            if panel["axis"] == "linear":
                return left + room * value / panel["end"]
            begin = panel["begin"]
            return left + room * math.log(value / begin) / math.log(panel["end"] / begin)

        parts.append(text(20, y + 14, panel["title"], 15, "font-weight='bold'"))
        parts.append(text(20, y + 31, panel["note"], 11, "fill='#4b5563'"))
        y += 44
        top = y
        for bar in panel["bars"]:
            end = place(bar["value"])
            reached = bar.get("goal") is None or bar["value"] >= bar["goal"]
            parts.append(text(left - 8, y + 14, bar["label"], 12, "text-anchor='end'"))
            parts.append(f"<rect x='{left}' y='{y + 2}' width='{end - left:.1f}' height='16' fill='{'#2563eb' if reached else '#93c5fd'}'/>")
            if "goal" in bar:
                goal = place(bar["goal"])
                parts.append(f"<path d='M{goal:.1f},{y} V{y + 20}' stroke='#dc2626' stroke-width='2.5'/>")
                end = max(end, goal)
            parts.append(text(round(end + 6, 1), y + 14, f"{bar['value']:g} {panel['unit']}", 12))
            y += 23
        bound = place(panel["bound"])
        parts.append(f"<path d='M{bound:.1f},{top - 4} V{y}' stroke='#111827' stroke-dasharray='5 3'/>")
        y += 16
    parts.append(f"<path d='M20,{y - 6} V{y + 10}' stroke='#dc2626' stroke-width='2.5'/>")
    parts.append(text(28, y + 6, "goal", 11))
    parts.append(f"<path d='M80,{y - 6} V{y + 10}' stroke='#111827' stroke-dasharray='5 3'/>")
    parts.append(text(88, y + 6, "the bound, or the rival's speed", 11))
    parts.append(f"<rect x='270' y='{y - 4}' width='14' height='12' fill='#93c5fd'/>")
    parts.append(text(290, y + 6, "goal missed", 11))
    return svg(width, y + 20, parts)


def machines(rows: list[dict]) -> str:
    """The README's table of what runs where."""
    lines = ["| Machine | Model | Answer, tokens/s | Prompt, tokens/s | Memory | Disk | Figures |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        lines.append(f"| {row['machine']} | {row['model']} | {row['answer']} | {row['prompt']} | {row['memory']} | {row['disk']} | [{row['how']}]({row['page']}) |")
    return "\n".join(lines)


def between(text: str, name: str, content: str) -> str:
    """`text` with `content` between the two comments of this name."""
    begin, end = MARK.format(name, "begin"), MARK.format(name, "end")
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SystemExit(f"README.md: wanted one '{begin}' and one '{end}'")
    before, rest = text.split(begin)
    return f"{before}{begin}\n{content}\n{end}{rest.split(end)[1]}"


def table(rows: list[dict]) -> str:
    """The README's table of goals."""
    lines = ["| What | Measured | Goal | Command |", "|---|---|---|---|"]
    for row in rows:
        command = row["command"].replace("|", "\\|")
        lines.append(f"| [{row['what']}]({row['page']}) | {row['measured']} | {row['goal']} | `{command}` |")
    return "\n".join(lines)


def pictures() -> dict[Path, str]:
    """Every file with what it should hold."""
    figures = json.loads((ROOT / "bench/figures.json").read_text())
    readme = (ROOT / "README.md").read_text()
    readme = between(readme, "machines", machines(figures["machines"]))
    return {
        ROOT / "docs/pictures/architecture.svg": draw_architecture(),
        ROOT / "docs/pictures/speed.svg": draw_speed(figures["plot"]),
        ROOT / "README.md": between(readme, "figures", table(figures["table"])),
    }


def main() -> int:
    """Writes what changed, or names it."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--check", action="store_true", help="write nothing, exit 1 when a file is out of date")
    check = arguments.parse_args().check
    stale = [path for path, content in pictures().items() if not path.exists() or path.read_text() != content]
    for path in stale:
        if check:
            print(f"{path.relative_to(ROOT)}: out of date, run tools/draw_pictures.py")
        else:
            path.write_text(pictures()[path])
            print(f"wrote {path.relative_to(ROOT)}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
