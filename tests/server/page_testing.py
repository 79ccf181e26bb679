"""Common parts of the tests of the chat page: a server, a browser, and a person's acts. With DSV4_BROWSER=firefox the browser is
Firefox, else Chromium. With DSV4_PAGE_PICTURES=FOLDER the tests leave pictures there."""

import json
import os
import pathlib
import sys
import unittest

import browser
import firefox
from dsv4_process import wait_until
from server_process import Server

FIREFOX = os.environ.get("DSV4_BROWSER") == "firefox"
KIND = firefox.Firefox if FIREFOX else browser.Browser
find = firefox.find if FIREFOX else browser.find
SKIPPED = 77  # SKIP_RETURN_CODE in CMakeLists.txt.
PICTURES = os.environ.get("DSV4_PAGE_PICTURES")


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--context", 4096)
        cls.addClassCleanup(cls.server.__exit__)
        cls.browser = KIND(find())
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        self.show(1200, "light")
        self.do("localStorage.clear(); sessionStorage.clear(); indexedDB.deleteDatabase('dsv4').onsuccess = () => { window.wiped = true }")
        self.wait("window.wiped === true")
        self.show(1200, "light")

    def do(self, statement):
        """Runs what has no value."""
        self.browser.evaluate(statement + "; 0")

    def show(self, width, scheme="light", zoom=1):
        self.browser.resize(width, scheme=scheme, zoom=zoom)
        self.browser.open(self.server.url + "/")
        self.wait("document.title.startsWith('dsv4: ') && document.activeElement.id === 'ask'")

    def picture(self, name):
        """The bytes of a PNG file."""
        data = self.browser.screenshot()
        if PICTURES:
            (pathlib.Path(PICTURES) / f"{name}{'-firefox' if FIREFOX else ''}.png").write_bytes(data)
        return data

    def wait(self, expression):
        return wait_until(lambda: self.browser.evaluate(expression), expression)

    def ask(self, text):
        """As a person does: by the keyboard, in the text field that has the focus, else in the one for questions."""
        self.do("document.activeElement.localName === 'textarea' || document.getElementById('ask').focus()")
        self.browser.type(text)
        self.browser.press("Enter")

    def settings(self, **values):
        self.do(f"Object.assign(chosen(), {json.dumps(values)}); save(); show()")

    def force(self, text, **fields):
        """From now on the model answers this text, which its grammar forces it to."""
        body = {"structured_outputs": {"choice": [text]}, **fields}
        self.do(f"window.plainBody ??= requestBody; requestBody = (...all) => ({{ ...plainBody(...all), ...{json.dumps(body)} }})")

    def wait_for_answer(self):
        self.wait("current !== null && runs.size === 0")
        return self.browser.evaluate("JSON.stringify(current.turns.at(-1))")

    def click(self, name, within="document"):
        """The button of this name or label."""
        self.wait(f"[...{within}.querySelectorAll('button')].some(b => (b.ariaLabel || b.textContent) === {json.dumps(name)} && !b.disabled)")
        self.do(f"[...{within}.querySelectorAll('button')].findLast(b => (b.ariaLabel || b.textContent) === {json.dumps(name)} && !b.disabled).click()")

    def slow_answers(self):
        """From now on, answers arrive in pieces of 256 bytes each 20 ms, however fast the machine is."""
        self.do("""window.fastFetch ??= fetch; fetch = async (...all) => {
            const response = await fastFetch(...all);
            if (all[0] !== 'v1/chat/completions' || !response.body) return response;
            const slow = new TransformStream({ async transform(chunk, controller) {
              for (let i = 0; i < chunk.length; i += 256) {
                controller.enqueue(chunk.slice(i, i + 256));
                await new Promise(resolve => setTimeout(resolve, 20));
              } } });
            return new Response(response.body.pipeThrough(slow), { status: response.status, headers: response.headers });
          }""")

    def start_a_long_answer(self):
        """An answer that does not end by itself: one word always wins. It arrives slowly."""
        self.slow_answers()
        word = self.server.post("/tokenize", {"prompt": " house"})["tokens"][-1]
        self.do(f"const plain = requestBody; requestBody = turns => ({{ ...plain(turns), logit_bias: {{ {word}: 1000 }} }})")
        self.settings(temperature=0, thinking=False, max_tokens=3000)
        self.ask("Tell me a very long story.")
        self.wait("runs.size > 0 && current.turns.at(-1).content.length > 20")

    def drop(self, name, data):
        self.do(f"""var transfer = new DataTransfer(); transfer.items.add(new File([new Uint8Array({list(data)})], {json.dumps(name)}));
            document.getElementById('log').dispatchEvent(new DragEvent('dragover', {{ dataTransfer: transfer, bubbles: true, cancelable: true }}));
            document.getElementById('log').dispatchEvent(new DragEvent('drop', {{ dataTransfer: transfer, bubbles: true, cancelable: true }}))""")


def main():
    if find() is None:
        print(f"skipped: no {'Firefox' if FIREFOX else 'Chromium'} is installed")
        sys.exit(SKIPPED)
    unittest.main()
