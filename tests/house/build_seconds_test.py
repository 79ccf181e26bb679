"""A clone's first program compiles in minutes, and stays so: its units by module, and their seconds where this build had the machine to itself.

    build_seconds_test.py BUILD

build_seconds.json has the figures of a bare Debian 12 on two processors, without a compiler cache (tools/check_bare_debian.sh prints them;
`tools/build_seconds.py BUILD --target dsv4-run --write tests/house/build_seconds.json` writes them). Seconds of a log are wall-clock time, so
they are judged only where one run of ninja compiled all, in about the table's time. A busy machine, a cache and a build in pieces say
nothing. Then a module
has 1.6 times its seconds and 4 more.
"""
import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import build_seconds  # noqa: E402

TARGET = "dsv4-run"
TABLE = json.loads((ROOT / "tests/house/build_seconds.json").read_text(encoding="utf-8"))
# Two processors have 240 s for them; packages and configuring have a minute of the five that ./dev run may take.
MOST = 480


def limit(row):
    return 1.6 * row["seconds"] + 4


def judged(table, took, units):
    """Seconds by module; empty where they say nothing."""
    if not all(output in took for outputs in units.values() for _, output in outputs):
        return {}
    seconds = {module: sum(took[output] for _, output in outputs) for module, outputs in units.items()}
    whole = sum(seconds.values()) / sum(row["seconds"] for row in table.values())
    return seconds if 0.6 < whole < 1.3 else {}


def too_long(table, took, units):
    return {module: seconds for module, seconds in judged(table, took, units).items() if seconds > limit(table[module])}


class BuildSeconds(unittest.TestCase):
    build = None

    def setUp(self):
        self.units = build_seconds.by_module(dict.fromkeys(build_seconds.units_of(self.build, TARGET), 0.0))

    def test_the_table_is_within_the_budget(self):
        self.assertLess(sum(row["seconds"] for row in TABLE.values()), MOST)

    def test_modules_have_the_units_that_they_had(self):
        if not any("/unity_" in output for outputs in self.units.values() for _, output in outputs):
            self.skipTest("this build has no joined units")
        self.assertEqual(set(self.units), set(TABLE), "build_seconds.json has other modules than dsv4-run")
        for module, outputs in self.units.items():
            self.assertLessEqual(len(outputs), TABLE[module]["units"] * 1.3 + 1, module)

    def test_modules_take_the_seconds_that_they_took(self):
        took = build_seconds.seconds_of_one_run(self.build, {output for outputs in self.units.values() for _, output in outputs})
        if not judged(TABLE, took, self.units):
            self.skipTest("a compiler cache made this build, or it was made in pieces, or the machine was busy")
        self.assertEqual(too_long(TABLE, took, self.units), {})

    def test_a_module_that_grows_is_found(self):
        units = {module: [(0.0, f"{module}/a.o")] for module in TABLE}
        took = {f"{module}/a.o": row["seconds"] for module, row in TABLE.items()}
        self.assertEqual(too_long(TABLE, took, units), {})
        grown = max(TABLE, key=lambda module: TABLE[module]["seconds"])
        self.assertEqual(set(too_long(TABLE, took | {f"{grown}/a.o": 2 * TABLE[grown]["seconds"]}, units)), {grown})
        self.assertEqual(judged(TABLE, {output: 3 * seconds for output, seconds in took.items()}, units), {})  # Busy.
        self.assertEqual(judged(TABLE, dict.fromkeys(took, 0.05), units), {})  # Cached.
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / ".ninja_log").write_text("# ninja log v5\n0\t900\t1\ta/CMakeFiles/a.dir/x.cc.o\tff\n5\t2005\t2\ta/CMakeFiles/a.dir/x.cc.o\tff\n0\t7\t1\tdsv4\tff\n")
            self.assertEqual(build_seconds.seconds_of(folder), {"a/CMakeFiles/a.dir/x.cc.o": 2.0})
            self.assertEqual(build_seconds.seconds_of_one_run(folder, {"a/CMakeFiles/a.dir/x.cc.o"}), {})

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
