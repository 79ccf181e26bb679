"""The page of `dsv4 diagnose --html` in a real browser. It asks for nothing and complains about nothing. Every plot is to be seen in light
and dark, on a phone and on paper. Skipped, visibly, where no Chromium is installed."""

import pathlib
import shutil
import sys
import tempfile
import unittest

import browser
from html_pages import make_page

SKIPPED = 77  # SKIP_RETURN_CODE in CMakeLists.txt.

FIGURES = """[...document.querySelectorAll('figure svg.plot')].map(svg => {
  const box = svg.getBoundingClientRect();
  const marks = [...svg.querySelectorAll('path:not(.axis):not(.grid):not(.tick), circle, rect:not(.panel)')];
  const seen = marks.filter(m => { const b = m.getBoundingClientRect(); return b.width + b.height > 0; });
  const inside = seen.every(m => { const b = m.getBoundingClientRect();
    return b.left >= box.left - 1 && b.right <= box.right + 1 && b.top >= box.top - 1 && b.bottom <= box.bottom + 1; });
  return {id: svg.getAttribute('aria-labelledby'), width: box.width, height: box.height, marks: seen.length, inside};
})"""
CONTRAST = """(() => {
  const light = c => { const v = c.match(/[0-9.]+/g).slice(0, 3).map(x => x / 255)
    .map(x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4); return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
  const back = getComputedStyle(document.body).backgroundColor, front = getComputedStyle(document.body).color;
  const [a, b] = [light(back), light(front)].sort((x, y) => y - x);
  return {back: light(back), ratio: (a + 0.05) / (b + 0.05)};
})()"""


class InABrowser(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.directory)
        cls.page = cls.directory / "page.html"
        make_page(cls.page, "all", "--min-tokens", "140")
        cls.browser = browser.Browser(browser.find())
        cls.addClassCleanup(cls.browser.close)

    def show(self, width, scheme, media="screen", page=None):
        page = page or self.page
        self.browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
        self.browser.call("Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.browser.open(page.as_uri())
        self.assertEqual(self.browser.requests(), [page.as_uri()])
        self.assertEqual(self.browser.complaints(), [])

    def expect_figures(self, count=9):
        figures = self.browser.evaluate(FIGURES)
        self.assertGreaterEqual(len(figures), count)
        for figure in figures:
            self.assertGreater(figure["width"], 200, figure)
            self.assertGreater(figure["height"], 100, figure)
            self.assertGreater(figure["marks"], 0, figure)
            self.assertTrue(figure["inside"], figure)

    def test_light_and_dark(self):
        dark_back = {}
        for scheme in ("light", "dark"):
            self.show(1200, scheme)
            self.expect_figures()
            contrast = self.browser.evaluate(CONTRAST)
            self.assertGreater(contrast["ratio"], 7)  # WCAG AAA.
            dark_back[scheme] = contrast["back"]
        self.assertGreater(dark_back["light"], 0.8)
        self.assertLess(dark_back["dark"], 0.1)

    def test_an_unbroken_word_leaves_room_for_the_others(self):
        self.show(1200, "light")
        self.browser.evaluate("""document.querySelectorAll('.summary tr')[1].children[2].textContent = 'weights ' + '0123456789abcdef'.repeat(16); 0""")
        widths = self.browser.evaluate("[...document.querySelectorAll('.summary tr')[1].children].map(cell => cell.getBoundingClientRect().width)")
        self.assertGreater(min(widths[2:]), 140, widths)
        self.assertGreater(min(widths), 40, widths)
        self.assertLessEqual(self.browser.evaluate("document.querySelector('nav .scroll').scrollWidth - document.querySelector('nav .scroll').clientWidth"), 0)

    def test_a_phone_scrolls_down_only(self):
        self.show(360, "light")
        self.expect_figures()
        self.assertLessEqual(self.browser.evaluate("document.documentElement.scrollWidth"), 360)
        sizes = self.browser.evaluate("""[...document.querySelectorAll('figure.narrow svg.plot text')]
          .map(t => parseFloat(getComputedStyle(t).fontSize) * t.getScreenCTM().a)""")
        self.assertGreater(min(sizes), 9)  # CSS pixels.

    def test_comparisons(self):
        for code, arguments, count in ((1, ("--with-numerics", "plain", "--bound", "1e-6"), 5), (0, ("--ab", "each=reference"), 1)):
            page = self.directory / "compare.html"
            make_page(page, "compare", "--min-tokens", "140", *arguments, code=code)
            for width, scheme in ((1200, "dark"), (360, "light")):
                self.show(width, scheme, page=page)
                self.expect_figures(count)
                self.assertLessEqual(self.browser.evaluate("document.documentElement.scrollWidth"), width)

    def test_paper(self):
        self.show(800, "dark", media="print")
        self.expect_figures()
        self.assertGreater(self.browser.evaluate(CONTRAST)["back"], 0.8)  # Whatever the screen is set to.

    def test_names_for_those_who_listen(self):
        self.show(1200, "light")
        unnamed = self.browser.evaluate("""[...document.querySelectorAll('svg[role=img]')].filter(svg =>
          svg.getAttribute('aria-labelledby').split(' ').some(id => !document.getElementById(id)?.textContent)).length""")
        self.assertEqual(unnamed, 0)


if __name__ == "__main__":
    if browser.find() is None:
        print("skipped: none of " + ", ".join(browser.NAMES) + " is installed")
        sys.exit(SKIPPED)
    unittest.main()
