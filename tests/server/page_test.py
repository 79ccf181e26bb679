"""The chat page of `dsv4 serve` in a real browser: a conversation, reasoning, stop, again, reload, light, dark and narrow. Skipped,
visibly, where no Chromium is installed. With DSV4_PAGE_PICTURES=FOLDER it leaves pictures there."""

import base64
import json
import os
import pathlib
import sys
import time
import unittest

import browser
from dsv4_process import wait_until
from server_process import Server

SKIPPED = 77  # SKIP_RETURN_CODE in CMakeLists.txt.
PICTURES = os.environ.get("DSV4_PAGE_PICTURES")


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--context", 4096)
        cls.addClassCleanup(cls.server.__exit__)
        cls.browser = browser.Browser(browser.find())
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        self.show(1200, "light")
        self.do("localStorage.clear()")
        self.show(1200, "light")

    def do(self, statement):
        """Runs what has no value."""
        self.browser.evaluate(statement + "; 0")

    def show(self, width, scheme):
        self.browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
        self.browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.browser.open(self.server.url + "/")
        self.wait("document.title.startsWith('dsv4: ') && document.activeElement.id === 'ask'")

    def picture(self, name):
        if PICTURES:
            data = self.browser.call("Page.captureScreenshot", format="png")["data"]
            (pathlib.Path(PICTURES) / f"{name}.png").write_bytes(base64.b64decode(data))

    def wait(self, expression):
        return wait_until(lambda: self.browser.evaluate(expression), expression)

    def key(self, key, **modifiers):
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.browser.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode={"Enter": 13, "Escape": 27}.get(key, 0),
                              **(text if kind == "keyDown" else {}), **modifiers)

    def ask(self, text):
        """As a person does: by the keyboard, since the text field has the focus."""
        self.browser.call("Input.insertText", text=text)
        self.key("Enter")

    def settings(self, **values):
        self.do(f"Object.assign(settings, {json.dumps(values)}); save(); show()")

    def wait_for_answer(self):
        self.wait("current !== null && running === null")
        return self.browser.evaluate("JSON.stringify(current.turns.at(-1))")

    def test_a_conversation(self):
        self.settings(temperature=0)
        self.ask("What is the capital of France?")
        turn = json.loads(self.wait_for_answer())
        self.assertIn("Paris", turn["content"])
        self.assertTrue(turn["reasoning"])
        self.assertRegex(turn["note"], r"tok/s")
        shown = self.browser.evaluate("document.querySelector('#log .turn.assistant .text').innerText")
        self.assertIn("Paris", shown)
        self.assertFalse(self.browser.evaluate("document.querySelector('#log details').open"))
        self.ask("And of Spain?")
        self.wait("current.turns.length === 4 && running === null")
        reused = self.browser.evaluate("Number(current.turns.at(-1).note.match(/\\((\\d+) reused/)[1])")
        self.assertGreater(reused, 0)
        self.do("document.querySelector('#log details').open = true")
        self.picture("light")
        self.show(1200, "dark")  # What was said is still there.
        self.assertEqual(self.browser.evaluate("conversations[0].turns.length"), 4)
        self.do("select(conversations[0])")
        self.picture("dark")
        self.show(390, "light")
        self.do("select(conversations[0])")
        self.assertLessEqual(self.browser.evaluate("document.documentElement.scrollWidth"), 390)
        self.picture("narrow")
        self.do("document.getElementById('menu').click()")
        time.sleep(0.3)
        self.picture("narrow-menu")

    def test_again_and_stop(self):
        self.settings(temperature=1.5, thinking=False)
        self.ask("What is the capital of France?")
        first = self.wait_for_answer()
        self.do("[...document.querySelectorAll('.foot button')].find(b => b.textContent === 'Again').click()")
        self.wait("running !== null || current.turns.length === 2")
        self.wait_for_answer()
        self.assertEqual(self.browser.evaluate("current.turns.length"), 2)
        self.assertTrue(first)
        # One that does not end by itself: one word always wins.
        word = self.server.post("/tokenize", {"prompt": " house"})["tokens"][-1]
        self.do(f"const plain = requestBody; requestBody = turns => ({{ ...plain(turns), logit_bias: {{ {word}: 1000 }} }})")
        self.settings(temperature=0, max_tokens=3000)
        self.ask("Tell me a very long story.")
        self.wait("running !== null && current.turns.at(-1).content.length > 0")
        self.key("Escape")
        self.wait("running === null")
        self.assertEqual(self.browser.evaluate("current.turns.at(-1).error"), "stopped")

    def test_tool_calls_and_errors_are_shown(self):
        tool = {"type": "function", "function": {"name": "search_ticket", "description": "Search a ticket.",
                "parameters": {"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}}, "color": {"type": "string"}}, "required": ["tags", "color"]}}}
        self.settings(temperature=0, thinking=False, tools=json.dumps([tool]))
        self.ask("Search a ticket with tags cook, color golden, please.")
        self.wait_for_answer()
        self.assertIn("search_ticket", self.browser.evaluate("document.querySelector('.call').innerText"))
        self.settings(temperature=-1)
        self.ask("And in Rome?")
        self.wait("current.turns.length === 4 && running === null")
        self.assertIn("temperature", self.browser.evaluate("document.querySelector('.error').innerText"))
        self.picture("calls-and-errors")

    def test_text_never_becomes_markup(self):
        self.do("""(() => { const node = document.createElement('div');
            showText(node, 'a <img src=x onerror=alert(1)> `<b>`\\n\\n```html\\n<i>x</i>\\n```\\nend'); window.probe = node; })()""")
        self.assertEqual(self.browser.evaluate("probe.querySelectorAll('img, b, i').length"), 0)
        self.assertEqual(self.browser.evaluate("probe.querySelector('pre').textContent"), "<i>x</i>")

    def test_the_settings_by_hand(self):
        self.do("document.getElementById('open-settings').click()")
        self.assertTrue(self.browser.evaluate("document.getElementById('settings').open"))
        self.picture("settings")
        self.do("document.querySelector('[name=top_k]').value = 5; document.querySelector('#settings button').click()")
        self.wait("!document.getElementById('settings').open && Number(settings.top_k) === 5")

    def test_nothing_comes_from_elsewhere(self):
        self.assertTrue(all(url.startswith(self.server.url) for url in self.browser.requests()))
        complaints = [entry for entry in self.browser.complaints() if "favicon" not in json.dumps(entry)]
        self.assertEqual(complaints, [])


if __name__ == "__main__":
    if browser.find() is None:
        print("skipped: no Chromium is installed")
        sys.exit(SKIPPED)
    unittest.main()
