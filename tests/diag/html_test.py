"""The page of `dsv4 diagnose --html`: well formed, whole, needing nothing else, and closed to hostile texts."""

import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

from dsv4_process import BINARY, TINY, dsv4
from html_pages import CHECKS, Page, make_page


class Html(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.directory)

    def expect_self_contained(self, text):
        page = Page(text)
        self.assertEqual(len(page.ids()), len(set(page.ids())))
        for tag, attributes in page.elements:
            self.assertNotIn(tag, {"script", "link", "img", "iframe", "object", "embed", "form", "use", "image"})
            for name, value in attributes.items():
                self.assertFalse(name.startswith("on"), (tag, name))
                self.assertNotEqual(name, "style")  # What a strict policy for styles would refuse.
                if name in {"href", "src", "xlink:href", "action", "data"}:
                    self.assertTrue(value.startswith("#"), (tag, name, value))
                    self.assertIn(value[1:], page.ids())
        self.assertIsNone(re.search(r"url\(|@import|https?:", text))
        return page

    def test_all_draws_every_plot(self):
        page = self.expect_self_contained(make_page(self.directory / "page.html", "all", "--min-tokens", "140"))
        self.assertEqual([section["id"] for section in page.all("section")], CHECKS)
        figures = [name.removesuffix("-t") for name in page.ids() if name.endswith("-t")]
        for wanted in ("sampler-plot-0", "scale-invariance-plot-0", "residual-plot-0", "residual-plot-1", "decode-prefill-plot-0",
                       "decode-prefill-plot-1", "visible-keys-0", "visible-keys-1", "compare-plot-0", "checkpoint-plot-0", "checkpoint-plot-1"):
            self.assertIn(wanted, figures)
        self.assertEqual(len(page.all("figure")), len(figures))
        # Headings nest, and every drawing has a title, a description and a table.
        levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
        self.assertEqual(levels[0], 1)
        self.assertTrue(all(b - a <= 1 for a, b in zip(levels, levels[1:])), levels)
        for figure in figures:
            self.assertIn(f"{figure}-d", page.ids())
        self.assertGreaterEqual(len(page.all("table")), len(figures))
        texts = "".join(page.texts)
        self.assertIn("dsv4 diagnose all --min-tokens 140 --html", texts)
        self.assertRegex(texts, r"backend\s*cpu \(")

    def test_a_comparison_draws_error_choices_growth_and_logits(self):
        exchange = ("20", "--ab", "linear=reference")
        for code, arguments, num_plots in ((1, ("140", "--with-numerics", "plain", "--bound", "1e-6"), 5), (0, exchange, 4),
                                           (0, (*exchange, "--shared"), 1), (0, ("20", "--ab", "each=reference"), 1)):
            page = self.expect_self_contained(make_page(self.directory / "page.html", "compare", "--min-tokens", *arguments,
                                                        code=code))
            self.assertEqual([name for name in page.ids() if re.fullmatch(r"compare-plot-\d-t", name)],
                             [f"compare-plot-{i}-t" for i in range(num_plots)])

    def test_hostile_texts_stay_texts(self):
        evil = "</title><script>alert(1)</script><img src=x onerror=alert(1)> \u202etxt.exe & 'x' \"y\""
        model = self.directory / "<b onclick=x>&"
        shutil.copytree(TINY, model)
        page = self.expect_self_contained(make_page(self.directory / "page.html", "prompt", evil, "-m", model))
        texts = "".join(page.texts)
        self.assertIn("</title><script>alert(1)</script><img src=x onerror=alert(1)> \\u{202e}txt.exe", texts)
        self.assertIn("<b onclick=x>&", texts)

    def test_a_finding_is_shown_and_the_exit_code_says_so(self):
        other = self.directory / "other"
        other.write_text("another prompt", encoding="utf-8")
        page = Page(make_page(self.directory / "page.html", "all", "--against", other, code=1))
        self.assertEqual([section["class"] for section in page.all("section")], ["pass", "finding"])
        self.assertIn("1 finding, 1 passed", page.texts)
        self.assertTrue(any(text.startswith("Stopped: ") for text in page.texts))

    def test_json_and_page_come_together(self):
        process = dsv4("diagnose", "stop-set", "--json", "--html", self.directory / "page.html")
        self.assertEqual(process.returncode, 0, process.stderr)
        self.assertTrue(process.stdout.startswith("{"))
        self.assertTrue((self.directory / "page.html").exists())

    def test_a_page_is_written_whole_or_not_at_all(self):
        page = self.directory / "page.html"
        page.write_text("the page of yesterday", encoding="utf-8")
        # No file may grow beyond 1 kB, as on a disk that is full.
        process = subprocess.run(["prlimit", "--fsize=1024", BINARY, "diagnose", "stop-set", "--html", str(page)],
                                 capture_output=True, text=True, timeout=600, check=False,
                                 preexec_fn=lambda: signal.signal(signal.SIGXFSZ, signal.SIG_IGN))
        self.assertEqual(process.returncode, 1, process.stderr)
        self.assertIn(f"{page}: cannot write: File too large", process.stderr)
        self.assertEqual(page.read_text(encoding="utf-8"), "the page of yesterday")
        self.assertEqual([path.name for path in self.directory.iterdir()], ["page.html"])
        for wrong in (self.directory / "absent" / "page.html", self.directory):
            process = dsv4("diagnose", "all", "--html", wrong)
            self.assertEqual((process.returncode, process.stdout), (3, ""))  # Before the first check.
            self.assertIn(str(wrong), process.stderr)


if __name__ == "__main__":
    unittest.main()
