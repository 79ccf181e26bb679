"""Random keys in the chat: DSV4_KEYSTROKES of them, from DSV4_KEYSTROKES_SEED."""

import contextlib
import os
import random
import select
import time
import unittest

import chat_terminal
from dsv4_process import SLOWNESS


class Keystrokes(chat_terminal.TypingTest):
    def read_all(self, terminal, seconds=0):
        """Until nothing has come for so long."""
        while select.select([terminal.master], [], [], seconds)[0]:
            terminal.screen += os.read(terminal.master, 65536).decode(errors="replace")

    def test_random_keys_lose_nothing(self):
        number = int(os.environ.get("DSV4_KEYSTROKES", "400"))
        seed = int(os.environ.get("DSV4_KEYSTROKES_SEED", "7"))
        keys = ["a", "é", "北", "👩", " ", "\x01", "\x05", "\x02", "\x06", "\x7f", "\x0b", "\x15", "\x17", "\x19", "\t",
                "\x1b[A", "\x1b[B", "\x1b[C", "\x1b[D", "\x1b[3~", "\x1b[H", "\x1b[F", "\x1b[5~", "\x1b\r", "\\\r",
                "\x1bb", "\x1bf", "\x1bd", "\x14", "\x1b[200~pasted\r\ttéxt\x1b[201~", "\x1b[99;5u", "\x1b", "\x03",
                "\x12é\x05", "\x0c", "\x16", "\x1f"]
        random_ = random.Random(seed)
        terminal = self.open(columns=40)
        for i in range(number):
            key = random_.choice(keys)
            if key == "\x03":
                # Some key may have sent a message, and a second Ctrl-C before its answer has stopped ends the chat, as it should. So what comes
                # in now must be the prompt behind this one; none comes where the key before takes it as text.
                self.read_all(terminal, 0.2)
            terminal.position = len(terminal.screen)
            terminal.send(key)
            if key == "\x03":
                with contextlib.suppress(AssertionError):
                    terminal.wait_for("> ", min(5 * SLOWNESS, 15))
            if i % 20 == 19:
                terminal.resize(random_.choice((20, 40, 80, 200)), random_.choice((5, 24)))
                time.sleep(0.02)
            self.assertIsNone(terminal.process.poll(), f"after {i} keys, DSV4_KEYSTROKES_SEED={seed}")
            self.read_all(terminal)
        time.sleep(0.3)
        terminal.send("\x07\x03")  # Whatever is on the line or being searched is given up.
        time.sleep(0.3)
        terminal.position = len(terminal.screen)
        self.ask(terminal, "\x15last é line\r")
        self.assertEqual(self.asked(terminal)[-1], "last é line", f"DSV4_KEYSTROKES_SEED={seed}")
        self.leave(terminal)

    def test_random_edits_keep_every_character(self):
        """The question is the list of characters that the same keys make, whatever the width of the terminal is meanwhile."""
        number = int(os.environ.get("DSV4_KEYSTROKES", "400"))
        seed = int(os.environ.get("DSV4_KEYSTROKES_SEED", "7"))
        random_ = random.Random(seed)
        terminal = self.open(columns=40)
        text, cursor = [], 0
        for i in range(number):
            kind = random_.choices(("type", "paste", "newline", "left", "right", "backspace", "delete"), (60, 4, 4, 12, 8, 8, 4))[0]
            if kind in ("type", "paste", "newline"):
                typed = {"type": random_.choice("abc d.é北京서Ж👩🚀ß"), "newline": "\n",
                         "paste": "pasted\n\ttéxt " + "京" * random_.randrange(40)}[kind]
                text[cursor:cursor] = typed
                cursor += len(typed)
                keys = {"type": typed, "newline": "\x1b\r", "paste": f"\x1b[200~{typed}\x1b[201~"}[kind]
            elif kind in ("left", "right"):
                cursor = max(cursor - 1, 0) if kind == "left" else min(cursor + 1, len(text))
                keys = {"left": "\x1b[D", "right": "\x1b[C"}[kind]
            elif kind == "backspace":
                keys = "\x7f"
                if cursor:
                    cursor -= 1
                    del text[cursor]
            else:
                keys = "\x1b[3~"
                del text[cursor:cursor + 1]
            terminal.send(keys)
            if i % 20 == 19:
                terminal.resize(random_.choice((20, 40, 80, 200)), random_.choice((5, 24)))
            if i % 80 == 79 or i == number - 1:
                text[cursor:cursor] = "."
                terminal.position = len(terminal.screen)
                self.ask(terminal, ".\r")
                self.assertEqual(self.asked(terminal), ["".join(text)], f"after {i} keys, DSV4_KEYSTROKES_SEED={seed}")
                terminal.send("/clear\r")
                text, cursor = [], 0
            self.read_all(terminal)
        self.leave(terminal)


if __name__ == "__main__":
    unittest.main()
