"""Checks that tools/house_figures.py counts what it says, and that every figure of this tree is there."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import house_figures  # noqa: E402

HEADER = """
class Pump : public Thing {
 public:
  void Run();  // { a brace in a comment

 private:
  struct Part {
    void Inner();
  };
  Status Fill(int tokens);
  std::function<void()> done_ = MakeNothing();
  int64_t count() const { return count_; }
  static Result<Pump> Open(
      const char* name);
  int64_t count_ = 0;
};
"""


class HouseFiguresTest(unittest.TestCase):
    """The counting, then the table."""

    def test_functions_of_a_class(self) -> None:
        self.assertEqual(house_figures.private_functions(HEADER, "Pump"), 2, "Fill and Open")
        with self.assertRaisesRegex(ValueError, "no source matches"):
            house_figures.private_functions(HEADER, "Pipe")

    def test_comments_and_dates(self) -> None:
        self.assertEqual(house_figures.without_comments('a = "//b"; // c\n/* d\n */e'), 'a = "//b"; \ne')
        self.assertTrue(house_figures.DATE_OR_HASH.search("measured at 1f00dfa"))
        self.assertTrue(house_figures.DATE_OR_HASH.search("on 2026-11-28"))
        self.assertFalse(house_figures.DATE_OR_HASH.search("Draft 2020-12 of 1000000 bytes, defaced"))

    def test_every_figure_is_there(self) -> None:
        rows = {row.name.strip(): row for row in house_figures.figures()}
        self.assertEqual(len(rows), len(house_figures.figures()), "a name stands twice")
        self.assertGreater(rows["lines of src and apps, tests apart"].value, 100_000)
        self.assertGreater(rows["lines of src and apps, tests apart"].value, rows["code alone, no comment, no empty line"].value)
        self.assertLessEqual(rows["lines of engine.h"].value, 150)
        self.assertLessEqual(rows["lines of Engine::Step"].value, 40)


if __name__ == "__main__":
    unittest.main()
