"""Unit test of tools/check_includes.py: a small clean tree, and one deliberate violation of each rule."""

from __future__ import annotations

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import check_includes  # noqa: E402

ARCHITECTURE = """# Title
## Modules
Some words.

| Level | Module | May include | Must never see |
|---|---|---|---|
| 0 | `base` | nothing | everything else |
| 1 | `tensor` | base | files |
| 2 | `ops` | base, tensor | backends |
| 3 | `backend/reference` | base, tensor, ops | model |
| 3 | `model` | ops, tensor, base | backends |
| 6 | `apps` | everything | |

## After
"""

DEPENDENCIES = """# Title
## Libraries
| Library | Debian package | Headers | Used by | Why |
|---|---|---|---|---|
| fmt | `libfmt-dev` | `fmt/` | base | text |
| GoogleTest | `libgtest-dev` | `gtest/` | tests | tests |
"""

CLEAN_TREE = {
    "docs/architecture.md": ARCHITECTURE,
    "docs/dependencies.md": DEPENDENCIES,
    "src/base/status.h": "#include <string>\n#include <sys/mman.h>\n",
    "src/base/status.cc": '#include "base/status.h"\n#include <fmt/core.h>\n',
    "src/base/CMakeLists.txt": "dsv4_module(NAME base SOURCES status.cc LIBS fmt::fmt)\n",
    "src/tensor/tensor.h": '#include "base/status.h"\n',
    "src/tensor/CMakeLists.txt": "dsv4_module(NAME tensor SOURCES tensor.cc DEPS base)\n",
    "src/ops/ops.h": '#include "tensor/tensor.h"\n#  include "base/status.h"\n',
    "src/ops/CMakeLists.txt": "dsv4_module(NAME ops SOURCES ops.cc\n  DEPS base tensor  # both\n  LIBS m)\n",
    "src/backend/reference/norm.cc": '#include "ops/ops.h"\n',
    "src/backend/reference/CMakeLists.txt": "dsv4_module(NAME reference SOURCES norm.cc DEPS ops)\n",
    "src/model/runtime/model.cc": '#include "ops/ops.h"\n',
    "src/model/model_test.cc": '#include <gtest/gtest.h>\n#include "tensor/tensor.h"\n#include "tests/compare.h"\n',
    "src/model/CMakeLists.txt": "dsv4_module(NAME model SOURCES model.cc DEPS ops)\n",
    "apps/command_line/main.cc": '#include "model/runtime/model.cc"\n#include "backend/reference/norm.cc"\n',
    "tests/compare.h": "",
}


class CheckIncludesTest(unittest.TestCase):
    """Each test changes one file of the clean tree and names the violation it expects."""

    def check(self, changes: dict[str, str]) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for name, text in {**CLEAN_TREE, **changes}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            return check_includes.check_tree(root)

    def expect(self, changes: dict[str, str], *parts: str) -> None:
        problems = self.check(changes)
        self.assertEqual(len(problems), 1, problems)
        for part in parts:
            self.assertIn(part, problems[0])

    def expect_bad_table(self, name: str, old: str, new: str, message: str) -> None:
        self.assertIn(old, CLEAN_TREE[name])
        with self.assertRaisesRegex(check_includes.TableError, message):
            self.check({name: CLEAN_TREE[name].replace(old, new)})

    def test_clean_tree(self) -> None:
        self.assertEqual(self.check({}), [])

    def test_upward_include(self) -> None:
        self.expect({"src/base/status.h": '\n\n#include "tensor/tensor.h"\n'},
                    "src/base/status.h:3", "base may not include tensor", "only nothing")

    def test_backend_in_model(self) -> None:
        self.expect({"src/model/norm.h": '#include "backend/reference/norm.cc"\n'},
                    "model may not include backend/reference, only base, ops, tensor")

    def test_backend_in_model_test(self) -> None:
        self.expect({"src/model/model_test.cc": '#include "backend/reference/norm.cc"\n'}, "model may not include")

    def test_include_not_declared(self) -> None:
        self.expect({"src/model/runtime/model.h": '#include "tensor/tensor.h"\n'},
                    "src/model/CMakeLists.txt", "model includes tensor but DEPS does not name it")

    def test_declared_not_included(self) -> None:
        self.expect({"src/model/CMakeLists.txt": "dsv4_module(NAME model SOURCES a.cc DEPS ops tensor)"},
                    "DEPS tensor, but no source file of model includes it")

    def test_declared_against_table(self) -> None:
        problems = self.check({"src/model/CMakeLists.txt": "dsv4_module(NAME model SOURCES a.cc DEPS ops reference)"})
        self.assertTrue(any("DEPS backend/reference, but model may include only" in p for p in problems), problems)

    def test_declared_unknown(self) -> None:
        self.expect({"src/model/CMakeLists.txt": "dsv4_module(NAME model SOURCES a.cc DEPS ops kernels)"},
                    "DEPS kernels names no dsv4_module()")

    def test_folder_without_row(self) -> None:
        self.expect({"src/misc/helper.h": ""}, "src/misc/helper.h", "no row")

    def test_row_ahead_of_its_module(self) -> None:
        row = "| 6 | `apps` | everything | |"
        self.assertEqual(self.check({"docs/architecture.md": ARCHITECTURE.replace(row, f"| 5 | `server` | base | |\n{row}")}),
                         [])

    def test_relative_include(self) -> None:
        self.expect({"src/ops/args.cc": '#include "ops.h"\n'}, "src/ops/args.cc:1", "no such file")
        self.expect({"src/ops/args.cc": '#include "../ops/ops.h"\n'}, "no such file")

    def test_test_header_in_product_code(self) -> None:
        self.expect({"src/model/runtime/model.h": '#include "tests/compare.h"\n'}, "folder without a row")

    def test_third_party_in_wrong_module(self) -> None:
        self.expect({"src/model/runtime/model.h": "#include <fmt/core.h>\n"}, "fmt may be used by base, not by model")

    def test_test_library_in_product_code(self) -> None:
        self.expect({"src/model/runtime/model.h": "#include <gtest/gtest.h>\n"}, "GoogleTest may be used by tests")

    def test_unlisted_third_party(self) -> None:
        self.expect({"src/base/gpu.h": "#include <cuda_runtime.h>\n"}, "cuda_runtime.h", "no row")

    def test_table_cycle(self) -> None:
        table = ARCHITECTURE.replace("| 3 | `model` | ops,", "| 3 | `model` | backend/reference, ops,")
        table = table.replace("base, tensor, ops |", "base, tensor, ops, model |")
        with self.assertRaisesRegex(check_includes.TableError, "cycle backend/reference -> model -> backend/reference"):
            self.check({"docs/architecture.md": table})

    def test_table_edge_upwards(self) -> None:
        self.expect_bad_table("docs/architecture.md", "| 1 | `tensor` | base |", "| 1 | `tensor` | base, ops |",
                              "edges go down")

    def test_table_unknown_module(self) -> None:
        self.expect_bad_table("docs/architecture.md", "| 1 | `tensor` | base |", "| 1 | `tensor` | bass |", "no row")

    def test_table_missing(self) -> None:
        self.expect_bad_table("docs/architecture.md", "## Modules", "## Rooms", "exactly one heading")
        self.expect_bad_table("docs/dependencies.md", "| Headers |", "| Header |", "columns")

    def test_table_unknown_user(self) -> None:
        self.expect_bad_table("docs/dependencies.md", "| base | text |", "| bases | text |", "bases")


ROOMS = """{"src/model": {"may_include": {"low": [], "high": ["low"]}, "left": {"low -> high": 1}}}"""
ROOM_TREE = {
    "tools/rooms.json": ROOMS,
    "src/model/low/a.h": '#include "model/high/b.h"\n',
    "src/model/high/b.h": '#include "model/low/a.h"\n#include <vector>\n',
    "src/model/low/a_test.cc": '#include "model/high/b.h"\n',
}


class RoomsTest(unittest.TestCase):
    """Rooms of a module: what a row allows, and the list that only shrinks."""

    def check(self, changes: dict[str, str], shrink: bool = False) -> tuple[list[str], str]:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for name, text in {**CLEAN_TREE, **ROOM_TREE, **changes}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            problems = check_includes.check_rooms(root, shrink)
            return problems, (root / "tools/rooms.json").read_text()

    def expect(self, changes: dict[str, str], part: str) -> None:
        problems, _ = self.check(changes)
        self.assertEqual(len(problems), 1, problems)
        self.assertIn(part, problems[0])

    def test_listed_includes_and_tests_pass(self) -> None:
        problems, _ = self.check({})
        self.assertEqual(problems, [])

    def test_one_more_include(self) -> None:
        self.expect({"src/model/low/c.cc": '#include "model/high/b.h"\n'}, "low may not include high (tools/rooms.json): 2 includes, 1 are left")

    def test_new_room(self) -> None:
        self.expect({"src/model/attic/c.cc": '#include "model/low/a.h"\n'}, "room attic of src/model has no row")

    def test_new_edge(self) -> None:
        rows = ROOMS.replace('"high": ["low"]', '"high": []')
        self.expect({"tools/rooms.json": rows}, "high may not include low (tools/rooms.json): 1 includes, 0 are left")

    def test_the_list_shrinks_and_never_grows(self) -> None:
        _, fewer = self.check({"src/model/low/a.h": ""}, shrink=True)
        self.assertIn('"left": {}', fewer)
        _, more = self.check({"src/model/low/c.cc": '#include "model/high/b.h"\n'}, shrink=True)
        self.assertIn('"low -> high": 1', more)

    def test_rows_go_down(self) -> None:
        with self.assertRaises(check_includes.TableError):
            self.check({"tools/rooms.json": ROOMS.replace('"low": []', '"low": ["high"]')})
        with self.assertRaises(check_includes.TableError):
            self.check({"tools/rooms.json": ROOMS.replace('"low": []', '"low": ["attic"]')})


if __name__ == "__main__":
    unittest.main()
