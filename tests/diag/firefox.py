"""A headless Firefox, driven through WebDriver BiDi with nothing but the standard library; the same methods as browser.Browser."""

import base64
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import tempfile

NAMES = ("firefox-esr", "firefox")
KEYS = {"Enter": "\ue007", "Tab": "\ue004", "Escape": "\ue00c", "Backspace": "\ue003"}
PREFERENCES = {
    "app.update.auto": False, "browser.shell.checkDefaultBrowser": False, "datareporting.policy.dataSubmissionEnabled": False,
    "toolkit.telemetry.enabled": False, "network.captive-portal-service.enabled": False, "network.connectivity-service.enabled": False,
    "browser.safebrowsing.update.enabled": False, "services.settings.server": "data:,", "extensions.update.enabled": False,
    "browser.aboutConfig.showWarning": False, "remote.active-protocols": 1,
}


def find():
    """The browser's path, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Socket:
    """As much of a WebSocket client as this needs: whole text messages."""

    def __init__(self, host, port, path):
        self.socket = socket.create_connection((host, port), timeout=120)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall((f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                             f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n").encode())
        self.buffer = b""
        while b"\r\n\r\n" not in self.buffer:
            self.fill()
        head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise AssertionError(f"the browser refused the connection: {head!r}")

    def fill(self):
        data = self.socket.recv(1 << 16)
        if not data:
            raise AssertionError("the browser ended")
        self.buffer += data

    def take(self, size):
        while len(self.buffer) < size:
            self.fill()
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data

    def send(self, text, opcode=1):
        data = text.encode()
        mask = os.urandom(4)
        size = struct.pack("!B", 128 + len(data)) if len(data) < 126 else struct.pack("!BH", 254, len(data)) if len(data) < 65536 else struct.pack("!BQ", 255, len(data))
        masked = (int.from_bytes(data, "big") ^ int.from_bytes((mask * (len(data) // 4 + 1))[:len(data)], "big")).to_bytes(len(data), "big")
        self.socket.sendall(bytes([128 + opcode]) + size + mask + masked)

    def receive(self):
        """The next message."""
        message = b""
        while True:
            first, size = self.take(2)
            size = size if size < 126 else struct.unpack("!H", self.take(2))[0] if size == 126 else struct.unpack("!Q", self.take(8))[0]
            data = self.take(size)
            if first & 15 == 9:
                self.send(data.decode(), 10)
            elif first & 15 in (0, 1):
                message += data
                if first & 128:
                    return message.decode()


class Firefox:
    """One page at a time. `events` holds everything the browser reported since the last open()."""

    def __init__(self, path):
        self.profile = tempfile.mkdtemp()
        with open(os.path.join(self.profile, "user.js"), "w", encoding="utf-8") as file:
            file.writelines(f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in PREFERENCES.items())
        self.process = subprocess.Popen([path, "--headless", "--no-remote", "--profile", self.profile, "--remote-debugging-port", "0"],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, "HOME": self.profile})
        for line in self.process.stderr:
            if found := re.search(r"WebDriver BiDi listening on ws://([\d.]+):(\d+)", line):
                break
        else:
            raise AssertionError("Firefox ended before it listened")
        # Later output has no reader, so it goes to a file that is gone.
        self.drain = subprocess.Popen(["cat"], stdin=self.process.stderr, stdout=subprocess.DEVNULL)
        self.socket = Socket(found[1], int(found[2]), "/session")
        self.events, self.number, self.session = [], 0, None
        self.call("session.new", capabilities={})
        self.call("session.subscribe", events=["log.entryAdded", "network.beforeRequestSent"])
        self.new_tab()

    def new_tab(self):
        """Opens a tab of the same profile and makes it the one that is driven. Returns its name, which may be set as `session`."""
        self.session = self.call("browsingContext.create", type="tab")["context"]
        return self.session

    def close_tab(self):
        self.call("browsingContext.close", context=self.session)

    def close(self):
        """Ends the browser."""
        self.process.terminate()
        self.process.wait(timeout=120)
        self.drain.wait(timeout=120)
        self.process.stderr.close()
        self.socket.socket.close()
        shutil.rmtree(self.profile, ignore_errors=True)

    def call(self, method, **parameters):
        """The result of a command of the protocol."""
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self.socket.receive())
            if answer.get("id") == self.number:
                if answer["type"] == "error":
                    raise AssertionError(f"{method}: {answer['error']}: {answer['message']}")
                return answer["result"]
            self.events.append(answer)

    def open(self, url):
        """Loads a page and returns when it is there."""
        self.events.clear()
        self.call("browsingContext.navigate", context=self.session, url=url, wait="complete")

    def evaluate(self, expression, person=False):
        """The value of a JavaScript expression in the page."""
        result = self.call("script.evaluate", expression=expression, target={"context": self.session}, awaitPromise=False, userActivation=person,
                           serializationOptions={"maxObjectDepth": 10})
        if result["type"] == "exception":
            raise AssertionError(result["exceptionDetails"])
        return plain(result["result"])

    def evaluate_as_person(self, expression):
        """Likewise, as if a person had just pressed something: what the browser forbids otherwise is allowed."""
        return self.evaluate(expression, person=True)

    def resize(self, width, height=900, scheme="light", zoom=1):
        """The size of the page, the colours that the system prefers, and the zoom: at 2, half as many CSS pixels, twice as large."""
        self.call("browsingContext.setViewport", context=self.session, viewport={"width": int(width / zoom), "height": int(height / zoom)}, devicePixelRatio=zoom)

    def perform(self, actions):
        self.call("input.performActions", context=self.session, actions=actions)

    def type(self, text):
        self.perform([{"type": "key", "id": "keys", "actions": [{"type": kind, "value": letter} for letter in text for kind in ("keyDown", "keyUp")]}])

    def press(self, key, ctrl=False, shift=False):
        """A key by its name: Enter, Tab, Escape, a letter."""
        held = ["\ue009"] * ctrl + ["\ue008"] * shift
        value = KEYS.get(key, key)
        actions = [{"type": "keyDown", "value": each} for each in [*held, value]] + [{"type": "keyUp", "value": each} for each in [value, *held]]
        self.perform([{"type": "key", "id": "keys", "actions": actions}])

    def click_at(self, x, y):
        self.perform([{"type": "pointer", "id": "mouse", "actions": [{"type": "pointerMove", "x": int(x), "y": int(y)}, {"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]}])

    def screenshot(self):
        """The bytes of a PNG file."""
        return base64.b64decode(self.call("browsingContext.captureScreenshot", context=self.session)["data"])

    def requests(self):
        """The addresses that were asked for."""
        return [event["params"]["request"]["url"] for event in self.events if event.get("method") == "network.beforeRequestSent"]

    def complaints(self):
        """Errors and warnings of the console, the page and its policy."""
        return [event["params"] for event in self.events if event.get("method") == "log.entryAdded"]


def plain(value):
    """A value of the protocol as Python has it."""
    kind = value["type"]
    if kind == "array":
        return [plain(each) for each in value["value"]]
    if kind == "object":
        return {name: plain(each) for name, each in value["value"]}
    return value.get("value")
