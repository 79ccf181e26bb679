"""Pages of `dsv4 diagnose --html` for tests, and what stands in them."""

import html.parser

from dsv4_process import dsv4

VOID = {"meta", "br", "hr", "img", "input", "link"}
CHECKS = ["files", "prompt", "stop-set", "sampler", "scale-invariance", "residual", "visible", "decode-prefill", "compare", "knowledge", "indexer", "router",
          "checkpoint"]


def make_page(path, *arguments, code=0):
    """Runs `diagnose ... --html PATH` and returns the page's text."""
    process = dsv4("diagnose", *arguments, "--html", path)
    if process.returncode != code:
        raise AssertionError(f"exit code {process.returncode}: {process.stderr}")
    return path.read_text(encoding="utf-8")


class Page(html.parser.HTMLParser):
    """Raises on tags that do not nest; collects elements and texts."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.texts = [], [], []
        self.feed(text)
        self.close()
        if self.open:
            raise AssertionError(f"never closed: {self.open}")

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if len(dict(attrs)) != len(attrs):
            raise AssertionError(f"an attribute twice: {tag} {attrs}")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            raise AssertionError(f"</{tag}> closes nothing, line {self.getpos()}")

    def handle_data(self, data):
        self.texts.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    def ids(self):
        return [attributes["id"] for _, attributes in self.elements if "id" in attributes]
