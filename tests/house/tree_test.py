"""Checks the shape of the tree: no long file, no crowded folder, and one meaning for each name that headers of a namespace share. A
profiler's line leads to every kernel."""

from __future__ import annotations

import collections
import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {".h", ".cc", ".cu", ".cuh", ".c", ".py", ".js"}
MOST_LINES = 600
MOST_FILES = 40
# A file that only tests need.
FOR_TESTS = re.compile(r"(_test|_testing)\.\w+$|^testing\.\w+$")


def sources(*tops: str) -> list[Path]:
    """The source files below some folders, relative to the root."""
    return sorted(path.relative_to(ROOT) for top in tops for path in (ROOT / top).rglob("*")
                  if path.suffix in SOURCES and path.is_file())


def text(path: Path) -> str:
    """A file without comments."""
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", (ROOT / path).read_text(errors="replace"), flags=re.DOTALL)


def namespaces(source: str) -> tuple[str, ...]:
    """The namespaces that a file opens, those without a name left out."""
    return tuple(re.findall(r"^namespace ([\w:]+) \{", source, flags=re.MULTILINE))


def included(path: Path, seen: set[Path]) -> set[Path]:
    """Our headers that a source reads, with those that they read."""
    for header in re.findall(r'^#include "([^"]+)"', (ROOT / path).read_text(errors="replace"), flags=re.MULTILINE):
        for target in (Path("src") / header, Path(header)):
            if target not in seen and (ROOT / target).is_file():
                seen.add(target)
                included(target, seen)
    return seen


def kernels(source: str) -> list[str]:
    """The names of the __global__ functions that a file defines."""
    plain = re.sub(r"__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)", "", source)
    return re.findall(r"__global__\s+(?:static\s+)?void\s+(?:__cluster_dims__\s*\([^)]*\)\s*)?(\w+)\s*\(", plain)


def camel_case(stem: str) -> str:
    """gemm_tma_bf16: GemmTmaBf16; splitk_kernel: Splitk."""
    return "".join(part.capitalize() for part in stem.removesuffix("_kernel").split("_"))


class TreeTest(unittest.TestCase):
    """One test per promise."""

    def test_no_file_is_long(self) -> None:
        long = {str(path): lines for path in sources("src", "apps", "tests", "bench", "tools", "python", "include")
                if (lines := len((ROOT / path).read_text(errors="replace").splitlines())) > MOST_LINES}
        self.assertEqual(long, {}, f"more than {MOST_LINES} lines")

    def test_no_folder_is_crowded(self) -> None:
        count = collections.Counter(str(path.parent.relative_to(ROOT)) for top in ("src", "apps") for path in (ROOT / top).rglob("*")
                                    if path.is_file() and not FOR_TESTS.search(path.name))
        self.assertGreater(len(count), 40)
        crowded = {folder: files for folder, files in count.items() if files > MOST_FILES}
        self.assertEqual(crowded, {}, f"more than {MOST_FILES} files beside tests")

    def test_headers_of_a_namespace_define_a_name_once(self) -> None:
        found = collections.defaultdict(set)
        definition = re.compile(r"^(?:inline |static )?constexpr [\w:<>, ]+ (k\w+)\b(?= = |\[|\{)|"
                                r"^(?:struct|class|enum class) (\w+)(?: final)?(?: : [^{;]+)?\s*\{", re.MULTILINE)
        for path in sources("src", "apps"):
            if path.suffix in {".h", ".cuh"}:
                source = text(path)
                for names in definition.findall(source):
                    found[namespaces(source), names[0] or names[1]].add(str(path))
        self.assertGreater(len(found), 500)
        self.assertEqual({name: sorted(paths) for name, paths in found.items() if len(paths) > 1}, {})

    def test_kernels_are_named_after_their_files(self) -> None:
        found = collections.defaultdict(list)
        for path in sources("src/backend/cuda"):
            for name in kernels(text(path)):
                found[name].append(path)
        self.assertGreater(len(found), 90)
        self.assertEqual({name: list(map(str, paths)) for name, paths in found.items() if len(paths) > 1}, {})
        strangers = [f"{paths[0]}: {name}, wanted {camel_case(paths[0].stem)}...Kernel" for name, paths in found.items()
                     if not re.fullmatch(camel_case(paths[0].stem) + r"\w*Kernel", name)]
        self.assertEqual(strangers, [])

    def test_device_code_reads_light_headers(self) -> None:
        # nvcc reads a .cu five times. These headers cost it 3 to 5 CPU seconds each time: kernels have launch_context.h.
        heavy = {Path("src") / header for header in ("backend/cuda/runtime/cuda_context.h", "backend/cuda/runtime/device_queue.h",
                                                     "backend/cuda/runtime/cuda_ops.h", "ops/op_table.h")}
        for header in heavy:
            self.assertTrue((ROOT / header).is_file(), header)
        on_the_queue = {"ll_exchange.cu", "copy_bytes.cu"}  # Their launches belong to no op.
        found = [f"{path}: {', '.join(sorted(map(str, reads)))}" for path in sources("src/backend/cuda")
                 if path.suffix == ".cu" and path.name not in on_the_queue and (reads := included(path, set()) & heavy)]
        self.assertEqual(found, [])
        self.assertTrue(included(Path("src/backend/cuda/runtime/copy_bytes.cu"), set()) & heavy)

    def test_no_kernel_definition_is_overlooked(self) -> None:
        missed = []
        for path in sources("src/backend/cuda"):
            source = text(path)
            written = len(re.findall(r"__global__\s", source)) - len(re.findall(r"__global__[^{;]*;", source))
            if written != len(kernels(source)) - len(re.findall(r"__global__[^{;]*;", source)):
                missed.append(str(path))
        self.assertEqual(missed, [])
        self.assertEqual(kernels("template <int k>\n__global__ void __launch_bounds__(kThreads(k), 1) AKernel(const P p) {"), ["AKernel"])
        self.assertEqual(camel_case("gemm_tma_bf16"), "GemmTmaBf16")


if __name__ == "__main__":
    unittest.main()
