"""A headless Chromium, driven through its debugging pipe with nothing but the standard library."""

import base64
import json
import os
import shutil
import subprocess
import tempfile

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find():
    """The browser's path, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page at a time. `events` holds everything the browser reported since the last open()."""

    def __init__(self, path):
        self.profile = tempfile.mkdtemp()
        to_browser, self.write_end = os.pipe()
        self.read_end, from_browser = os.pipe()
        arguments = [path, "--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking",
                     "--disable-component-update", "--remote-debugging-pipe", f"--user-data-dir={self.profile}",
                     # With a mouse, as on a desk.
                     "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4"]
        if os.geteuid() == 0:
            arguments.append("--no-sandbox")
        # The browser reads from descriptor 3 and writes to 4. Debian's sh knows none above 9.
        shell = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        self.process = subprocess.Popen(["bash", "-c", shell, "bash", *arguments], pass_fds=(to_browser, from_browser),
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.buffer, self.events, self.number, self.session = b"", [], 0, None
        self.new_tab()

    def new_tab(self):
        """Opens a tab of the same profile and makes it the one that is driven. Returns its name, which may be set as `session`."""
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")
        return self.session

    def close(self):
        """Ends the browser."""
        os.close(self.write_end)
        self.process.terminate()
        self.process.wait(timeout=120)
        os.close(self.read_end)
        shutil.rmtree(self.profile, ignore_errors=True)

    def receive(self):
        """The next message."""
        while b"\0" not in self.buffer:
            data = os.read(self.read_end, 1 << 16)
            if not data:
                raise AssertionError("the browser ended")
            self.buffer += data
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **parameters):
        """The result of a command of the debugging protocol."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def open(self, url):
        """Loads a page and returns when it is there."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self.receive())

    def evaluate(self, expression):
        """The value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise AssertionError(result["exceptionDetails"])
        return result["result"].get("value")

    def evaluate_as_person(self, expression):
        """Likewise, as if a person had just pressed something: what the browser forbids otherwise is allowed."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True, userGesture=True)["result"].get("value")

    def resize(self, width, height=900, scheme="light", zoom=1):
        """The size of the page, the colours that the system prefers, and the zoom: at 2, half as many CSS pixels, twice as large."""
        self.call("Emulation.setDeviceMetricsOverride", width=int(width / zoom), height=int(height / zoom), deviceScaleFactor=zoom, mobile=width < 500)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def type(self, text):
        self.call("Input.insertText", text=text)

    def press(self, key, ctrl=False, shift=False):
        """A key by its name: Enter, Tab, Escape, a letter."""
        text = {"Enter": "\r", "Tab": None, "Escape": None, "Backspace": None}.get(key, key)
        code = {"Enter": 13, "Escape": 27, "Tab": 9, "Backspace": 8}.get(key, ord(key[0].upper()))
        for kind in ("keyDown", "keyUp"):
            extra = {"text": text} if kind == "keyDown" and text and not ctrl else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key if len(key) > 1 else f"Key{key.upper()}", windowsVirtualKeyCode=code,
                      modifiers=2 * ctrl + 8 * shift, **extra)

    def click_at(self, x, y):
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self):
        """The bytes of a PNG file."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def close_tab(self):
        self.call("Page.close")

    def requests(self):
        """The addresses that were asked for."""
        return [event["params"]["request"]["url"] for event in self.events if event["method"] == "Network.requestWillBeSent"]

    def complaints(self):
        """Errors and warnings of the console, the page and its policy."""
        kinds = {"Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"}
        return [event["params"] for event in self.events if event["method"] in kinds]
