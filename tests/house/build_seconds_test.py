"""A clone's first program compiles in minutes, and stays so: its units by module, and their seconds where this build had the machine to itself.

    build_seconds_test.py BUILD

build_seconds.json has the figures of a quiet machine with two processors and no compiler cache (tools/check_bare_debian.sh prints them;
`tools/build_seconds.py BUILD --target dsv4-run --write tests/house/build_seconds.json` writes them). Seconds of a log are wall-clock time and
machines differ. So they are judged only where one run of ninja compiled all, and a module by its share: it may have 1.6 times its part of the
whole, and 4 seconds more. A cache, another load and a build in pieces say nothing.
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import build_seconds  # noqa: E402

TARGET = "dsv4-run"
TABLE = json.loads((ROOT / "tests/house/build_seconds.json").read_text(encoding="utf-8"))
# The machine of the table took 468 to 540 s for the same units on two days.
MOST = 560


def slowness(table, took, units):
    """How many times the table's seconds all units took; 0 where that says nothing."""
    if not all(output in took for outputs in units.values() for _, output in outputs):
        return 0
    whole = sum(took[output] for outputs in units.values() for _, output in outputs) / sum(table[module]["seconds"] for module in units)
    return whole if 0.6 < whole < 1.5 else 0


def too_long(table, took, units):
    """Seconds of each module that took more than its share."""
    times = slowness(table, took, units)
    seconds = {module: sum(took[output] for _, output in outputs) for module, outputs in units.items()} if times else {}
    return {module: taken for module, taken in seconds.items() if taken > 1.6 * times * table[module]["seconds"] + 4}


class BuildSeconds(unittest.TestCase):
    build = None

    def setUp(self):
        self.units = build_seconds.by_module(dict.fromkeys(build_seconds.units_of(self.build, TARGET), 0.0))

    def test_the_table_is_within_the_budget(self):
        # On a processor with AVX2 alone, as that of the table.
        self.assertLess(sum(row["seconds"] for module, row in TABLE.items() if not module.endswith((", scalar", ", avx512", ", avx512bf16"))), MOST)

    def test_modules_have_the_units_that_they_had(self):
        if not any("/unity_" in output for outputs in self.units.values() for _, output in outputs):
            self.skipTest("this build has no joined units")
        others = {module for module in TABLE if module.startswith("src/backend/cpu, ")} - set(self.units)
        self.assertEqual(set(self.units), set(TABLE) - others, "build_seconds.json has other modules than dsv4-run")
        for module, outputs in self.units.items():
            self.assertLessEqual(len(outputs), TABLE[module]["units"] * 1.3 + 2, module)

    def test_modules_take_the_seconds_that_they_took(self):
        took = build_seconds.seconds_of_one_run(self.build, {output for outputs in self.units.values() for _, output in outputs})
        if not slowness(TABLE, took, self.units):
            self.skipTest("a compiler cache made this build, or it was made in pieces, or the machine was busy")
        self.assertEqual(too_long(TABLE, took, self.units), {})

    def test_a_module_that_grows_is_found(self):
        units = {module: [(0.0, f"{module}/a.o")] for module in TABLE}
        took = {f"{module}/a.o": row["seconds"] for module, row in TABLE.items()}
        self.assertEqual(too_long(TABLE, took, units), {})
        for grown in sorted(TABLE, key=lambda module: TABLE[module]["seconds"])[-3:]:
            twice = took | {f"{grown}/a.o": 2.4 * TABLE[grown]["seconds"]}
            self.assertEqual(set(too_long(TABLE, twice, units)), {grown})
            slower = {output: 1.15 * seconds for output, seconds in twice.items()}  # Another machine.
            self.assertEqual(set(too_long(TABLE, slower, units)), {grown})
        self.assertEqual(slowness(TABLE, {output: 3 * seconds for output, seconds in took.items()}, units), 0)  # Busy.
        self.assertEqual(slowness(TABLE, dict.fromkeys(took, 0.05), units), 0)  # Cached.
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / ".ninja_log").write_text("# ninja log v5\n0\t900\t1\ta/CMakeFiles/a.dir/x.cc.o\tff\n5\t2005\t2\ta/CMakeFiles/a.dir/x.cc.o\tff\n0\t7\t1\tdsv4\tff\n")
            self.assertEqual(build_seconds.seconds_of(folder), {"a/CMakeFiles/a.dir/x.cc.o": 2.0})
            self.assertEqual(build_seconds.seconds_of_one_run(folder, {"a/CMakeFiles/a.dir/x.cc.o"}), {})

    def test_files_are_joined_where_no_private_name_meets_another(self):
        texts = {
            "a.cc": "namespace {\nusing Clock = std::chrono::steady_clock;\nusing kv::Page;\nint Same() {\n}\n}  // namespace\n",
            "alias.cc": "namespace {\nusing Clock = std::chrono::steady_clock;\nusing kv::Page;\n}  // namespace\n",
            "other_alias.cc": "namespace {\nusing Clock = std::chrono::system_clock;\n}  // namespace\n",
            "function.cc": "namespace {\nint Same(int x) {\n}\n}  // namespace\n",
            "macro.cc": "#define Clock 1\n",
        }
        with tempfile.TemporaryDirectory() as name:
            for file, text in texts.items():
                (pathlib.Path(name) / file).write_text(text)

            def groups(*files, most=1000):
                lines = subprocess.run([sys.executable, ROOT / "tools/joined_units.py", str(most), *files], cwd=name, capture_output=True, text=True, check=True).stdout
                return dict(line.split(" ")[::-1] for line in lines.splitlines())

            self.assertEqual(groups("a.cc", "alias.cc"), {"a.cc": "0", "alias.cc": "0"})
            self.assertEqual(groups("a.cc", "alias.cc", most=150), {"a.cc": "0", "alias.cc": "1"})  # Too large together.
            for meets in ("other_alias.cc", "function.cc", "macro.cc"):
                self.assertEqual(groups("a.cc", meets), {"a.cc": "0", meets: "1"})

    def test_seconds_are_counted_anew_beside_the_objects(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "a.cc").write_text("#include <map>\nint a;\n")
            (folder / "b.cc").write_text("#error not wanted\n")
            entries = [{"directory": name, "file": f"{stem}.cc", "command": f"ccache c++ -MD -MF {stem}.d -c {stem}.cc -o m/{stem}.o"} for stem in "ab"]
            (folder / "compile_commands.json").write_text(json.dumps(entries))
            for wanted in ({"outputs": {"m/a.o"}}, {"outputs": None, "pattern": "/a."}):
                took = build_seconds.measured_seconds(folder, **wanted)
                self.assertEqual(set(took), {"m/a.o"})
                self.assertGreater(took["m/a.o"], 0.0)
            self.assertEqual({path.name for path in folder.iterdir()}, {"a.cc", "b.cc", "compile_commands.json"})
            with self.assertRaisesRegex(SystemExit, "m/b.o does not compile"):
                build_seconds.measured_seconds(folder, {"m/b.o"})


if __name__ == "__main__":
    BuildSeconds.build = pathlib.Path(sys.argv.pop(1))
    unittest.main()
