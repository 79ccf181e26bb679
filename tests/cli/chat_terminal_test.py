"""The interactive chat on a real pseudo-terminal: history, dimmed reasoning, and Ctrl-C."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import termios
import time
import unittest

import chat_terminal
from chat_terminal import QUICK, Terminal
from dsv4_process import BINARY, PATIENCE, dsv4, wait_until

TICKET_QUESTION = "Search a ticket with tags cook, color golden, please."
TICKET = {"type": "function", "function": {"name": "search_ticket", "description": "Search a ticket.", "parameters": {
    "type": "object", "properties": {"tags": {"type": "array", "description": "List of tags", "items": {"type": "string"}},
                                     "color": {"type": "string", "description": "Colour"}}, "required": ["tags", "color"]}}}
DIM, RESET = "\x1b[2m", "\x1b[0m"


class Chat(unittest.TestCase):
    def open(self, *arguments):
        terminal = Terminal(*arguments)
        self.addCleanup(terminal.close)
        terminal.wait_for("/help.")
        return terminal

    def test_reasoning_is_dimmed_and_the_second_turn_reuses_the_first(self):
        terminal = self.open("--temperature", "0")
        terminal.send("What is the capital of France?\n")
        terminal.wait_for(DIM)
        terminal.wait_for(RESET)
        self.assertIn("Paris", terminal.wait_for("tok/s), answer"))
        terminal.send("What is the capital of Japan?\n")
        self.assertIn("Tokyo", terminal.wait_for(" reused, answer"))
        terminal.send("/exit\n")
        self.assertEqual(terminal.process.wait(timeout=PATIENCE), 0)

    def test_ctrl_c_stops_the_answer_and_keeps_the_chat(self):
        # A loop that never ends by itself: the end of sentence and the rest of the vocabulary cannot win against one token.
        terminal = self.open("--temperature", "0", "--logit-bias", "100=1000", "--max-tokens", "100000")
        terminal.send("Hello\n")
        terminal.wait_for(DIM)
        terminal.wait_for("\N{REPLACEMENT CHARACTER}" * 20)  # What that token is: a piece of a character.
        os.kill(terminal.process.pid, signal.SIGINT)
        terminal.wait_for("tok/s), answer")
        terminal.send("/help\n")
        terminal.wait_for("/clear")
        terminal.send("/exit\n")
        self.assertEqual(terminal.process.wait(timeout=PATIENCE), 0)

    def test_ctrl_c_before_the_answer_takes_the_message_back(self):
        conversation = pathlib.Path(tempfile.mkdtemp()) / "last.json"
        self.addCleanup(shutil.rmtree, conversation.parent)
        terminal = Terminal("--temperature", "0", "--thinking-mode", "chat", "--max-tokens", "6", "--backend", "reference",
                            env={"DSV4_CONVERSATION": str(conversation)})
        self.addCleanup(terminal.close)
        terminal.wait_for("/help.")
        notes = conversation.parent / "notes.txt"
        notes.write_text("word and other words " * 600)
        terminal.send("Hello\r")
        terminal.wait_for(", answer ")
        terminal.send(f"/read {notes}\r")
        terminal.wait_for("next message")
        for presses in ("\x03", "\x03\x03"):  # Pressed twice it is the same one.
            terminal.send("Shorten this\r")
            terminal.wait_for("Reading")
            terminal.send(presses)
            self.assertRegex(terminal.wait_for("the message is taken back"), r"prompt \d+ of \d+ tokens in [\d.]+ s")
            time.sleep(0.3)
        self.assertEqual(len(json.loads(conversation.read_text())), 2)
        # The file still goes in front of the next message.
        terminal.send("Shorten this\r")
        terminal.wait_for(", answer ")
        wait_until(lambda: len(json.loads(conversation.read_text())) == 4, "both turns are kept")
        self.assertIn("word and other", json.loads(conversation.read_text())[2]["content"])
        terminal.send("/exit\r")
        self.assertEqual(terminal.process.wait(timeout=PATIENCE), 0)

    def test_a_later_ctrl_c_ends_what_does_not_stop(self):
        modes = termios.ICANON | termios.ECHO
        terminal = Terminal("--backend", "reference", "--pass-tokens", "8192")
        self.addCleanup(terminal.close)
        terminal.wait_for("/help.")
        terminal.send("\x1b[200~" + "word and other words " * 1000 + "\x1b[201~")
        time.sleep(0.5)
        terminal.send("\r")
        time.sleep(1)
        terminal.send("\x03")
        terminal.wait_for("^C")
        time.sleep(1.2)
        self.assertIsNone(terminal.process.poll())
        terminal.send("\x03")
        self.assertEqual(terminal.process.wait(timeout=PATIENCE), -signal.SIGINT)
        terminal.wait_for(RESET + "\r\n")
        self.assertEqual(terminal.modes(), modes)

    def test_commands(self):
        terminal = self.open("--temperature", "0")
        terminal.send("/think\n")
        terminal.wait_for("Reasoning off.")
        terminal.send("/nonsense\n")
        terminal.wait_for("Unknown command")
        terminal.send("What is the capital of Italy?\n")
        self.assertNotIn(DIM, terminal.wait_for("Rome"))
        terminal.wait_for("> ")
        terminal.send("\x04")
        self.assertEqual(terminal.process.wait(timeout=PATIENCE), 0)

    def test_the_last_conversation_goes_on(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        kept = pathlib.Path(folder.name) / "state" / "last.json"
        env = {"DSV4_CONVERSATION": str(kept)}
        greedy = ("--temperature", "0", "--thinking-mode", "chat")
        none = dsv4("run", "-c", "Hello", env=env)
        self.assertEqual(none.returncode, 3)
        self.assertIn("there is no conversation to go on with", none.stderr)
        dsv4("run", "--system", "Be brief.", *greedy, "What is the capital of France?", env=env)
        self.assertEqual(kept.stat().st_mode & 0o777, 0o600)
        self.assertIn("Tokyo", dsv4("run", "--continue", *greedy, "What is the capital of Japan?", env=env).stdout)
        terminal = Terminal("-c", *greedy, env=env)
        self.addCleanup(terminal.close)
        terminal.wait_for("5 messages, the last of yours: What is the capital of Japan?")
        terminal.wait_for("> ")
        terminal.send("What is the capital of Italy?\r")
        terminal.wait_for("tok/s), answer")
        terminal.send("/exit\r")
        self.assertEqual(terminal.process.wait(timeout=PATIENCE), 0)
        messages = json.loads(kept.read_text(encoding="utf-8"))
        self.assertEqual([message["role"] for message in messages], ["system"] + ["user", "assistant"] * 3)
        self.assertEqual(messages[5]["content"], "What is the capital of Italy?")
        # Only the beginning of a long message is shown, and no half of a character.
        kept.write_text(json.dumps([{"role": "user", "content": "x" + "é" * 5000}]))
        terminal = Terminal("-c", *greedy, env=env)
        self.addCleanup(terminal.close)
        terminal.wait_for("the last of yours:")
        self.assertLess(len(terminal.wait_for("…")), 200)
        self.assertNotIn("\ufffd", terminal.screen)
        kept.write_text(json.dumps(messages))
        # A file that is no answer, or cannot be continued, leaves it as it is.
        before = kept.read_bytes()
        dsv4("run", "--raw", "-n", "4", "The capital", env=env)
        dsv4("run", "-n", "4", "--tools", "nowhere", "Hello", env=env)
        self.assertEqual(kept.read_bytes(), before)
        for other in (["--system", "x"], ["--messages", str(kept)], ["--raw"]):
            self.assertEqual(dsv4("run", "-c", *other, env=env).returncode, 2)

    def test_without_a_terminal_every_line_is_a_message(self):
        process = dsv4("run", "--temperature", "0", "--thinking-mode", "chat",
                       stdin="What is the capital of France?\nWhat is the capital of Japan?\n")
        self.assertEqual(process.returncode, 0, process.stderr)
        self.assertIn("Paris", process.stdout)
        self.assertIn("Tokyo", process.stdout)


LOCALES = ({"LC_ALL": "C.UTF-8"}, {"LC_ALL": "C"}, {"LC_ALL": "", "LANG": "", "LC_CTYPE": ""})


class Typing(chat_terminal.TypingTest):
    """Typed text is the question to the model: read back from the file that /save writes."""

    def test_no_character_is_lost_in_any_locale_and_width(self):
        texts = ["Crème brûlée à la Ærøskøbing", "北京 と 서울 в Москве", "emoji 👩\u200d🚀 🇫🇷 e\u0301", "x" * 300 + "é" * 30]
        for locale in LOCALES:
            for columns in (40, 200):
                with self.subTest(locale=locale, columns=columns):
                    terminal = self.open(env=locale, columns=columns)
                    for text in texts:
                        self.ask(terminal, text + "\r")
                    self.assertEqual(self.asked(terminal), texts)
                    self.leave(terminal)

    def test_dumb_terminal(self):
        for locale in LOCALES:
            with self.subTest(locale=locale):
                terminal = self.open(env={**locale, "TERM": "dumb"})
                self.ask(terminal, "Crème 北京\r")
                self.ask(terminal, "one\\\rtwo é\r")
                self.assertEqual(self.asked(terminal), ["Crème 北京", "one\ntwo é"])
                self.leave(terminal)
                self.assertNotIn("\x1b[", terminal.screen)

    def test_progress_stays_in_one_line(self):
        terminal = self.open(columns=24)
        for line in terminal.screen.replace("\r\n", "\r").split("\r"):
            if "Loading" in line:
                self.assertLess(len(line.replace("\x1b[2K", "")), 24)
        terminal.wait_for("> ")
        self.leave(terminal)

    def test_lines_that_continue(self):
        terminal = self.open()
        self.ask(terminal, "first é\\\rsecond\\\rthird\r")
        self.ask(terminal, "one\x1b\rtwo\r")
        self.assertEqual(self.asked(terminal), ["first é\nsecond\nthird", "one\ntwo"])
        self.leave(terminal)

    def test_a_paste_is_one_message(self):
        terminal = self.open()
        terminal.send("\x1b[200~line é one\rline two\r\ttabbed \x1b[31mred\r\x1b[201~")
        time.sleep(0.3)
        self.ask(terminal, "typed\r")
        self.assertEqual(self.asked(terminal), ["line é one\nline two\n\ttabbed [31mred\ntyped"])
        large = "".join(f"row {i} ü\r" for i in range(2000))
        self.ask(terminal, f"\x1b[200~{large}\x1b[201~\r")
        self.assertEqual(self.asked(terminal)[-1], large.replace("\r", "\n"))
        self.leave(terminal)

    def test_ctrl_c_ends_a_paste_whose_end_is_lost(self):
        terminal = self.open()
        for rest in ("", "rest\rof it\r", "rest\rof it\r\x1b[201~"):
            terminal.send("\x1b[200~first\rsecond ")
            time.sleep(0.2)
            terminal.send("\x03")
            terminal.send(rest)
            time.sleep(0.8)
        self.ask(terminal, "typed\r")
        self.assertEqual(self.asked(terminal), ["typed"])
        self.leave(terminal)

    def test_what_is_typed_during_an_answer_waits(self):
        terminal = self.open("--temperature", "0", "--thinking-mode", "chat", "--max-tokens", "300", "--logit-bias", "100=1000")
        terminal.send("Hello\r")
        terminal.wait_for("\N{REPLACEMENT CHARACTER}" * 5)
        terminal.send("Grüße\r\x1b[200~a\rb\x1b[201~\r")
        for _ in range(3):
            terminal.wait_for(", answer ")
        self.assertEqual(self.asked(terminal), ["Hello", "Grüße", "a\nb"])
        self.leave(terminal)

    def test_the_terminal_does_not_edit_between_lines(self):
        terminal = self.open("--temperature", "0", "--thinking-mode", "chat", "--max-tokens", "100000", "--logit-bias", "100=1000")
        terminal.send("Hello\r")
        terminal.wait_for("\N{REPLACEMENT CHARACTER}" * 5)
        self.assertEqual(terminal.modes(), 0)
        terminal.send("\x03")
        terminal.wait_for(", answer ")
        self.leave(terminal)

    def test_editing_keys(self):
        terminal = self.open()
        self.ask(terminal, "bcé\x01a\x05d\x1b[D\x1b[D\x1b[C\x7fü\r")  # Home, End, Left, Right, Backspace
        self.ask(terminal, "un\x1b[5~known\x1b[15~ keys\x1b[Z\x1b[1;2A\r")  # Keys without a meaning type nothing.
        self.ask(terminal, "throw away\x15kept\r")  # Ctrl-U
        self.ask(terminal, "\x1b[A\x1b[A again\r")  # The message before the last.
        self.ask(terminal, "\x12kno\x05!\r")  # Search.
        self.ask(terminal, "up\x1b\rdown\x1b[A1\x1b[B2\r")  # Up and Down inside a message.
        self.assertEqual(self.asked(terminal), ["abcüd", "unknown keys", "kept", "unknown keys again",
                                                "unknown keys again!", "up1\ndow2n"])
        self.leave(terminal)

    def test_interrupt_clears_the_line_and_end_of_input_leaves(self):
        terminal = self.open()
        for _ in range(20):
            terminal.send("not this\x03\x03\x03")
        time.sleep(0.5)
        self.ask(terminal, "this\r")
        self.assertEqual(self.asked(terminal), ["this"])
        terminal.send("\x04")
        self.assertEqual(terminal.process.wait(timeout=PATIENCE), 0)

    @unittest.skipUnless(shutil.which("tmux"), "no tmux")
    def test_a_line_is_drawn_anew_when_the_terminal_changes(self):
        """In a terminal that wraps its lines anew: nothing of the old drawing stays, whatever the width becomes."""
        name = f"dsv4-{os.getpid()}"
        text = "first wörds here " * 6 + "end"

        def tmux(*words):
            return subprocess.run(["tmux", "-u", "-L", name, *words], env=os.environ | {"LC_ALL": "C.UTF-8"}, capture_output=True, text=True,
                                  check=False).stdout

        def shown():
            return "".join(line.ljust(width) for line in tmux("capture-pane", "-p", "-S", "-").split("\n")).replace(" ", "")

        def wait_for_line(wanted):
            try:
                wait_until(lambda: shown().endswith(wanted), f"{wanted} in {width} columns")
            except AssertionError as error:
                raise AssertionError(f"{error}\n{tmux('capture-pane', '-p')}") from None

        def resize(columns):
            """Until the chat knows: tmux tells a program of a change some time after it has wrapped the screen anew."""
            asked = written.read_bytes().count(b"\x1b[6n")
            tmux("resize-window", "-x", str(columns), "-y", "30")
            wait_until(lambda: written.read_bytes().count(b"\x1b[6n") > asked, "the chat asks where the cursor is")
        width = 90
        written = self.folder / "written"
        written.touch()
        tmux("new-session", "-d", "-x", str(width), "-y", "30", f"DSV4_HISTORY= TERM=xterm {BINARY} run {' '.join(QUICK)}")
        self.addCleanup(tmux, "kill-server")
        wait_until(lambda: "/help.>" in shown(), "the chat's prompt")
        tmux("pipe-pane", f"cat >{written}")
        # A full screen: tmux puts the first rows of a line out of reach when an empty one becomes narrow.
        tmux("send-keys", "/help", "Enter", "/help", "Enter")
        wait_until(lambda: shown().count("stopsananswer.>") == 2, "help, twice")
        tmux("send-keys", "-l", text)
        wanted = "stopsananswer.>" + text.replace(" ", "")
        wait_for_line(wanted)
        for width in (40, 61, 23, 120, 90):
            resize(width)
            wait_for_line(wanted)
        # Rows that end where others went on, and the reverse.
        tmux("send-keys", "-N", "40", "Left")
        tmux("send-keys", "M-Enter", "x")
        tmux("send-keys", "-N", "10", "BSpace")
        tmux("send-keys", "-l", "behind")
        wanted = "stopsananswer.>" + (text[:-48] + "behind" + text[-40:]).replace(" ", "")
        wait_for_line(wanted)
        for width in (40, 61, 23, 120, 90):
            resize(width)
            wait_for_line(wanted)
        tmux("send-keys", "Home", "x", "Enter")
        wait_until(lambda: ",answer" in shown(), "the answer")

    def test_resize_while_typing(self):
        terminal = self.open(columns=200)
        terminal.send("a long line with é in it " * 5)
        for columns in (40, 17, 120):
            time.sleep(0.1)
            terminal.resize(columns)
        time.sleep(0.2)
        self.ask(terminal, "end\r")
        self.assertEqual(self.asked(terminal), ["a long line with é in it " * 5 + "end"])
        self.leave(terminal)

    def test_the_terminal_is_left_as_it_was(self):
        for end in ("/exit\r", "\x04", signal.SIGTERM, signal.SIGHUP):
            with self.subTest(end=end):
                terminal = self.open()
                terminal.wait_for("> ")
                if isinstance(end, str):
                    terminal.send(end)
                else:
                    os.kill(terminal.process.pid, end)
                terminal.process.wait(timeout=PATIENCE)
                self.assertEqual(terminal.modes(), termios.ICANON | termios.ECHO)

    def test_stopped_and_continued(self):
        terminal = self.open()
        terminal.send("before ")
        time.sleep(0.3)
        os.kill(terminal.process.pid, signal.SIGSTOP)
        time.sleep(0.2)
        os.kill(terminal.process.pid, signal.SIGCONT)
        time.sleep(0.2)
        self.ask(terminal, "after é\r")
        self.assertEqual(self.asked(terminal), ["before after é"])
        self.leave(terminal)

    def test_history_over_sessions(self):
        env = {"DSV4_HISTORY": str(self.folder / "history" / "lines")}
        terminal = self.open(env=env)
        self.ask(terminal, "one é\\\rtwo\r")
        self.leave(terminal)
        self.assertEqual((self.folder / "history" / "lines").stat().st_mode & 0o777, 0o600)
        terminal = self.open(env=env)
        self.ask(terminal, "\x1b[A\x1b[A!\r")  # The last line was /exit.
        self.assertEqual(self.asked(terminal), ["one é\ntwo!"])
        self.leave(terminal)

    def test_commands_of_the_conversation(self):
        terminal = self.open()
        notes = self.folder / "notes.txt"
        notes.write_text("ümlaut\n")
        terminal.send(f"/read {notes}\r")
        terminal.wait_for("in front of the next message")
        self.ask(terminal, "Question\r")
        self.assertEqual(self.asked(terminal), [f"{notes}:\n```\nümlaut\n```\n\nQuestion"])
        self.ask(terminal, "Second\r")
        self.ask(terminal, "/regen\r")
        self.assertEqual(self.asked(terminal)[1:], ["Second"])
        terminal.send("/undo\r")
        terminal.wait_for("Taken back.")
        self.assertEqual(len(self.messages(terminal)), 2)
        self.ask(terminal, "Thurd\r")
        terminal.send("/edit\r")
        time.sleep(0.3)
        self.ask(terminal, "?\r")
        self.assertEqual(self.asked(terminal)[1:], ["Thurd?"])
        saved = self.messages(terminal)
        terminal.send("/clear\r")
        (self.folder / "copy.json").write_text(json.dumps(saved))
        terminal.send(f"/load {self.folder}/copy.json\r")
        terminal.wait_for("4 messages read")
        self.assertEqual(self.messages(terminal), saved)
        terminal.send("/set temperature 0.5\r/set\r")
        terminal.wait_for("temperature 0.5, top-p 1")
        terminal.send("/set top-p 7\r")
        terminal.wait_for("wanted a number in (0, 1]")
        terminal.send("/set max-tokens 0\r")
        terminal.wait_for("wanted a whole number from 1 on")
        terminal.send("/EFFORT huge\r")
        terminal.wait_for("knows high, max")
        terminal.send("/stats\r")
        terminal.wait_for("tokens of context used")
        terminal.send("/ef\t\r")
        terminal.wait_for("the model's own")
        terminal.send("/nothing\r")
        terminal.wait_for("Unknown command")
        self.ask(terminal, "/etc/passwd is a path\r")
        self.leave(terminal)

    def test_files_under_the_home_and_what_is_forgotten(self):
        (self.folder / "notes.txt").write_text("x\n")
        terminal = self.open(*QUICK, env={"HOME": str(self.folder)})
        terminal.send("/read ~/no\t\r")
        terminal.wait_for("~/notes.txt: 2 bytes go in front")
        terminal.send("/clear\r")
        terminal.wait_for("The conversation is forgotten.")
        terminal.send("/system Be brief.\r")
        terminal.wait_for("The system message is set; the conversation starts afresh.")
        terminal.send("/save ~/saved.json\r/clear\r")
        terminal.wait_for("forgotten, except for the system message.")
        self.assertEqual(len(json.loads((self.folder / "saved.json").read_text())), 1)
        self.leave(terminal)

    def test_results_of_tools(self):
        tools = self.folder / "tools.json"
        tools.write_text(json.dumps([TICKET]))
        terminal = self.open("--temperature", "0", "--thinking-mode", "chat", "--max-tokens", "100")
        terminal.send(f"/tools {tools}\r")
        terminal.wait_for("1 tool.")
        terminal.send(f"{TICKET_QUESTION}\r")
        terminal.wait_for("result of search_ticket> ")
        self.ask(terminal, "zwei Karten é\r")
        self.assertEqual([m["content"] for m in self.messages(terminal) if m["role"] == "tool"], ["zwei Karten é"])
        # Ctrl-C instead of a result takes the message back.
        terminal.send("/undo\r")
        terminal.send(f"{TICKET_QUESTION}\r")
        terminal.wait_for("result of search_ticket> ")
        terminal.send("\x03")
        terminal.wait_for("taken back")
        self.assertEqual(self.messages(terminal), [])
        # A command that was allowed answers by itself; one that does not end is stopped by Ctrl-C.
        terminal.send("/allow search_ticket cat >/dev/null; echo drei Karten\r")
        terminal.wait_for("search_ticket is answered by cat")
        terminal.send(f"{TICKET_QUESTION}\r")
        terminal.wait_for("drei Karten")
        terminal.wait_for("drei Karten")
        terminal.wait_for(", answer ")
        self.assertEqual([m["content"] for m in self.messages(terminal) if m["role"] == "tool"], ["drei Karten"])
        terminal.send("/undo\r/allow search_ticket sleep 1000 & sleep 1000\r")
        terminal.wait_for("answered by sleep")
        terminal.send(f"{TICKET_QUESTION}\r")
        terminal.wait_for("search_ticket: sleep")
        terminal.send("\x03")
        terminal.wait_for("taken back")
        self.leave(terminal)

    def test_drawn_text_in_every_width_and_kind_of_terminal(self):
        """Words wrap whole; Markdown is drawn where the terminal can, in every locale."""
        seen = {}
        for columns in (40, 200):
            for env in ({"TERM": "xterm"}, {"TERM": "xterm", "LC_ALL": "C"}, {"TERM": "xterm", "NO_COLOR": "1"}, {"TERM": "dumb"}):
                with self.subTest(columns=columns, env=env):
                    terminal = self.open("--temperature", "0", "--max-tokens", "120", env=env, columns=columns)
                    terminal.wait_for("> ")
                    terminal.send("Tell me a story.\r")
                    shown = terminal.wait_for("prompt ", PATIENCE)
                    self.leave(terminal)
                    colours = "NO_COLOR" not in env and env["TERM"] != "dumb"
                    self.assertEqual(DIM in shown, colours)
                    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
                    lines = text.replace("\r\n", "\n").split("\n")[1:]
                    self.assertLessEqual(max(map(len, lines)), columns)
                    self.assertGreater(len(lines), 3 if columns == 40 else 0)
                    # The same words, whatever the width: none was broken.
                    seen[columns, str(env)] = " ".join(" ".join(lines).split())
        self.assertEqual(len(set(seen.values())), 1, seen)

    def test_commands_in_every_kind_of_terminal(self):
        for columns in (40, 200):
            for env in ({"TERM": "xterm", "LC_ALL": "C"}, {"TERM": "xterm", "LC_ALL": "C.UTF-8"}, {"TERM": "dumb", "LC_ALL": "C"}):
                with self.subTest(columns=columns, env=env):
                    terminal = self.open(env=env, columns=columns)
                    terminal.send("/help\r")
                    terminal.wait_for("/allow")
                    self.ask(terminal, "Grüße\r")
                    self.ask(terminal, "/regen\r")
                    self.assertEqual(self.asked(terminal), ["Grüße"])
                    terminal.send("/edit\r")
                    if env["TERM"] == "dumb":
                        terminal.wait_for("/undo takes it back")
                        terminal.send("/undo\r")
                        terminal.wait_for("Taken back.")
                    else:
                        terminal.wait_for("Grüße")
                        self.ask(terminal, " aus Köln\r")
                        self.assertEqual(self.asked(terminal), ["Grüße aus Köln"])
                    terminal.send("/set temperature 0.5\r/stats\r")
                    terminal.wait_for("temperature 0.5")
                    terminal.wait_for("of context used")
                    self.leave(terminal)

    def test_job_control(self):
        """Ctrl-Z in a shell's terminal and back: the shell gets its modes, and the line that was begun goes on."""
        if not shutil.which("bash"):
            self.skipTest("no bash")
        shell = Terminal(program=["bash", "--norc", "--noprofile", "-i"], env={"PS1": "shell$ ", "HISTFILE": ""})
        self.addCleanup(shell.close)
        shell.wait_for("shell$ ")
        shell.send(f"{BINARY} run {' '.join(QUICK)}\r")
        shell.wait_for("/help.")
        shell.wait_for("> ")
        shell.send("before ")
        shell.wait_for("before ")
        shell.send("\x1a")
        shell.wait_for("shell$ ")
        shell.send("echo $((6*7))\r")
        shell.wait_for("42")
        shell.wait_for("shell$ ")
        shell.send("fg\r")
        shell.wait_for("before ")
        self.ask(shell, "after é\r")
        self.assertEqual(self.asked(shell), ["before after é"])
        shell.send("/exit\r")
        shell.wait_for("shell$ ")

    def test_progress_has_an_estimate(self):
        terminal = Terminal(program=[BINARY, "bench", "--weights", "synthetic:tiny", "--prefill", "512", "--depth", "0,8192,16384", "--batch", "1",
                                     "--check", "off"])
        self.addCleanup(terminal.close)
        self.assertRegex(terminal.wait_for(" left"), r"row [123] of 4, \d+ s$")
        self.assertEqual(terminal.process.wait(timeout=PATIENCE), 0)


if __name__ == "__main__":
    unittest.main()
