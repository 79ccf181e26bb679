"""The chat page by keyboard, with a screen reader, on a phone and zoomed in. Also how fast it scrolls when much is there.

axe-core looks at every state of the page. It wants the package of page_requirements.txt in .venv (./dev venv tests/server/page_requirements.txt); without
it those tests are skipped, visibly.
"""

import json
import time
import unittest

import page_testing
from dsv4_process import ROOT

AXE = next((path for place in ("lib", "lib64") for path in (ROOT / ".venv" / place).glob("python3*/site-packages/axe_playwright_python/axe.min.js")), None)
TURNS = [{"role": "user", "content": "Draw everything", "files": [{"name": "notes.txt", "text": "a note\n"}]},
         {"role": "assistant", "reasoning": "Let me think.", "thought": 1200, "thoughtTokens": 4, "calls": [], "tokens": 300, "note": "12 tok/s",
          "content": "# Head\n\nText with **bold**, `code` and a [link](https://example.org).\n\n- one\n- [x] two\n\n> quote\n\n"
                     "| a | b |\n|---|--:|\n| 1 | 2 |\n\n```python\ndef f(x):  # comment\n    return \"text\", 1\n```\n\n$$\\frac{a}{b} = \\sqrt{x}$$\n\nand $e^x$.\n"},
         {"role": "user", "content": "Call a tool"},
         {"role": "assistant", "content": "", "reasoning": "", "calls": [{"id": "c", "name": "add", "arguments": "{\"a\": 1}"}], "error": "stopped"}]


def conversations(many):
    return json.dumps({"format": "dsv4 conversations", "version": 1, "conversations": many})


class Access(page_testing.PageTest):
    def fill(self):
        self.do(f"importText({json.dumps(conversations([{'title': 'Everything', 'turns': TURNS}, {'title': 'Another', 'turns': []}]))})")
        self.wait("conversations.length === 2 && conversations.every(c => c.version === 1)")
        self.do("select(conversations.find(c => c.title === 'Everything'))")

    def faults(self):
        """Findings of axe-core that are serious or worse, with the elements."""
        self.browser.evaluate(AXE.read_text() + "; 0")
        self.do("""window.found = undefined; axe.run(document, { resultTypes: ['violations'] }).then(result => { window.found = JSON.stringify(result.violations
            .map(each => [each.impact, each.id, each.nodes.map(node => node.html.slice(0, 120))])); }, error => { window.found = JSON.stringify([['critical', String(error)]]); })""")
        self.wait("window.found !== undefined")
        return [each for each in json.loads(self.browser.evaluate("window.found")) if each[0] in ("serious", "critical")]

    @unittest.skipUnless(AXE, "no axe-core: ./dev venv tests/server/page_requirements.txt")
    def test_axe_finds_nothing_serious(self):
        for scheme in ("light", "dark"):
            for width, zoom in ((1200, 1), (360, 1), (1200, 2)):
                with self.subTest(scheme=scheme, width=width, zoom=zoom):
                    self.browser.resize(width, scheme=scheme, zoom=zoom)
                    self.do(f"settings.theme = '{scheme}'; show()")
                    states = {"empty": "select(null)", "conversation": "select(conversations.find(c => c.title === 'Everything')); document.querySelector('#log details').open = true",
                              "edit": "[...document.querySelectorAll('.foot button')].find(b => b.ariaLabel === 'Edit').click()",
                              "notice": "notice('Deleted: x', { action: 'Undo', stays: true })", "list": "openMenu(true)",
                              "settings": "openMenu(false); document.getElementById('open-settings').click()"}
                    if not self.browser.evaluate("conversations.length"):
                        self.fill()
                    for state, action in states.items():
                        self.do(action)
                        time.sleep(0.3)  # The list slides in.
                        self.assertEqual(self.faults(), [], state)
                        self.picture(f"access-{scheme}-{width}-{zoom}-{state}")
                        self.assertLessEqual(self.browser.evaluate("document.documentElement.scrollWidth - innerWidth"), 0, state)
                    self.do("document.getElementById('settings').close(); hideNotice()")

    @unittest.skipUnless(AXE, "no axe-core: ./dev venv tests/server/page_requirements.txt")
    def test_axe_would_find_something(self):
        self.do("const bad = document.createElement('button'); document.querySelector('header').append(bad)")
        self.assertIn("button-name", [each[1] for each in self.faults()])

    def test_everything_by_keyboard(self):
        """Tab reaches every control in the order in which it is seen; nothing holds the focus."""
        self.fill()
        # The dialog gives the focus back to what opened it.
        self.do("document.getElementById('open-settings').focus()")
        self.browser.press("Enter")
        self.wait("document.getElementById('settings').open")
        self.browser.press("Escape")
        self.wait("!document.getElementById('settings').open && document.activeElement.id === 'open-settings'")
        self.do("document.getElementById('new').focus()")
        names = ["new"]
        for _ in range(60):
            self.browser.press("Tab")
            names.append(self.browser.evaluate("document.activeElement.id || document.activeElement.ariaLabel || document.activeElement.textContent.slice(0, 40)"))
            if names[-1] == "ask":
                break
        self.assertEqual(names[-1], "ask", names)
        for wanted in ("new", "search", "Everything", "Delete Everything", "export", "import", "rename", "open-settings", "Copy this code", "Result of add", "Again",
                       "Send results"):
            self.assertIn(wanted, names)
        order = ["new", "search", "Everything", "import", "rename", "open-settings", "Copy this code", "Result of add", "Send results"]
        self.assertEqual(sorted(order, key=names.index), order)

    def test_shortcuts(self):
        self.fill()
        for keys, state in (("O", "current === null"), ("E", "!chosen().thinking")):
            self.browser.press(keys, ctrl=True, shift=True)
            self.wait(state)

    def test_a_screen_reader_hears_who_speaks_and_the_end_of_an_answer(self):
        self.settings(temperature=0, thinking=False)
        self.do("""window.heard = []; new MutationObserver(() => heard.push(document.getElementById('said').textContent))
            .observe(document.getElementById('said'), { childList: true })""")
        self.ask("What is the capital of France?")
        self.wait_for_answer()
        self.assertEqual(self.browser.evaluate("[...document.querySelectorAll('#log article')].map(a => a.ariaLabel).join()"), "You,Answer")
        # Once at the start and once at the end, not letter by letter.
        self.wait("heard.length >= 2")
        heard = json.loads(self.browser.evaluate("JSON.stringify(heard)"))
        self.assertEqual((len(heard), heard[0]), (2, "Answering"))
        self.assertIn("Paris", heard[1])
        self.assertEqual(self.browser.evaluate("[document.getElementById('log').getAttribute('aria-live'), document.getElementById('said').role].join()"), "off,status")
        self.settings(temperature=-1)
        self.ask("And now?")
        self.wait("heard.length >= 4")
        self.assertIn("temperature", self.browser.evaluate("heard.at(-1)"))

    def frames(self, node):
        """Scrolls a node for two seconds, 6000 pixels a second, as a fast wheel does. Returns the frames a second, and the processor time of the page's
        thread for one, in ms."""
        before = self.thread_seconds()
        self.do(f"""window.times = []; (() => {{ const node = {node}; const begin = performance.now(); const from = node.scrollTop;
            const step = now => {{ times.push(now); node.scrollTop = from + 6 * (now - begin);
                if (now - begin < 2000) requestAnimationFrame(step); else window.scrolled = true; }};
            window.scrolled = false; requestAnimationFrame(step); }})()""")
        self.wait("window.scrolled")
        count, length = json.loads(self.browser.evaluate("JSON.stringify([times.length - 1, times.at(-1) - times[0]])"))
        used = self.thread_seconds() - before
        return 1000 * count / length, 1000 * used / count

    def thread_seconds(self):
        """Processor time of the page's main thread, where the browser tells it."""
        if page_testing.FIREFOX:
            return 0.0
        self.browser.call("Performance.enable", timeDomain="threadTicks")
        metrics = {each["name"]: each["value"] for each in self.browser.call("Performance.getMetrics")["metrics"]}
        return metrics["TaskDuration"]

    def show_much(self, answer):
        """200 conversations, in the first of them a long answer, which a loop of the page makes; shows it and says after how long."""
        self.do(f"""window.answer = ''; {answer}
            importText(JSON.stringify({{ format: 'dsv4 conversations', version: 1, conversations: Array.from({{ length: 200 }}, (_, i) => ({{ title: 'Conversation ' + i, turns: [
                {{ role: 'user', content: 'question ' + i }}, {{ role: 'assistant', reasoning: '', calls: [], content: i ? 'answer' : answer }}] }})) }}))""")
        self.wait("conversations.length === 200 && conversations.every(c => c.version === 1)")
        begin = time.monotonic()
        self.do("select(conversations.find(c => c.title === 'Conversation 0'))")
        self.browser.evaluate("document.getElementById('log').scrollHeight")
        print(f"an answer of 1 MB is shown after {time.monotonic() - begin:.1f} s")

    def scrolls(self, name, node):
        """The bound is processor time, which other programs do not change; the frames are printed."""
        self.do(f"{node}.scrollTop = 0")
        rate, used = self.frames(node)
        print(f"{name}: {rate:.0f} frames a second" + (f", {used:.1f} ms of processor time each" if used else ""))
        if not page_testing.FIREFOX:
            self.assertLess(used, 1000 / 60, name)
        self.assertGreater(rate, 5, name)  # It is not stuck.

    def test_much_scrolls_at_sixty_frames_a_second(self):
        self.show_much(f"""for (let i = 0; answer.length < 1e6; i++) answer += {json.dumps(TURNS[1]["content"])}.replace('Head', 'Part ' + i) + 'Plain words follow. '.repeat(40)
            + '\\n\\n';""")
        self.scrolls("the answer of 1 MB", "document.getElementById('log')")
        self.scrolls("the list of 200", "document.getElementById('list')")

    def test_a_table_of_1_mb_scrolls_at_sixty_frames_a_second(self):
        self.show_much("answer = '| a | b |\\n|---|--:|\\n'; for (let i = 0; answer.length < 1e6; i++) answer += `| row ${i} | **${7 * i}** |\\n`;")
        self.scrolls("the table of 1 MB", "document.getElementById('log')")
        # Whoever does not see it hears a table, with all its rows.
        self.assertEqual(self.browser.evaluate("""(() => { const table = document.querySelector('.tall table'); const row = table.querySelector('tbody tr');
            return [table.role, table.querySelector('tbody').role, row.role, row.firstChild.role, table.querySelector('th').role].join(); })()"""),
                         "table,rowgroup,row,cell,columnheader")
        self.assertGreater(self.browser.evaluate("document.querySelectorAll('.tall tbody tr').length"), 30000)
        self.assertEqual(self.browser.evaluate("getComputedStyle(document.querySelector('.tall td:last-child')).textAlign"), "right")


if __name__ == "__main__":
    page_testing.main()
