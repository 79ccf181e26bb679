"""The chat page of `dsv4 serve` in a real browser: conversations, branches, settings, files, tabs. Skipped, visibly, where no browser is
installed."""

import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib

import page_testing
from server_process import Server


class Page(page_testing.PageTest):
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
        self.wait("current.turns.length === 4 && runs.size === 0")
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
        self.click("Again")
        self.wait("runs.size > 0 || current.turns.length === 2")
        self.wait_for_answer()
        self.assertEqual(self.browser.evaluate("current.turns.length"), 2)
        # The first answer is kept as a branch.
        self.assertEqual(json.loads(self.browser.evaluate("JSON.stringify(current.turns[1].branches.tails[0][0])")), json.loads(first))
        self.click("Previous branch")
        self.wait("current.turns[1].branches.at === 0")
        self.assertEqual(self.browser.evaluate("current.turns[1].content"), json.loads(first)["content"])
        self.start_a_long_answer()
        self.browser.press("Escape")
        self.wait("runs.size === 0")
        self.assertEqual(self.browser.evaluate("current.turns.at(-1).error"), "stopped")

    def test_edit_makes_branches_that_stay(self):
        self.settings(temperature=0, thinking=False)
        self.ask("What is the capital of France?")
        self.wait_for_answer()
        self.ask("And of Spain?")
        self.wait("current.turns.length === 4 && runs.size === 0")
        self.click("Edit", "document.querySelector('.turn.user')")
        self.assertEqual(self.browser.evaluate("document.activeElement.value"), "What is the capital of France?")
        self.picture("edit")
        self.do("document.activeElement.select()")
        self.ask("What is the capital of Italy?")
        self.wait("current.turns.length === 2 && runs.size === 0 && !current.turns[1].active")
        self.assertEqual(self.browser.evaluate("document.querySelector('.said').innerText"), "What is the capital of Italy?")
        self.assertIn("Rome", self.browser.evaluate("document.querySelector('.text').innerText"))
        self.assertEqual(self.browser.evaluate("document.querySelector('.branches > span').innerText.trim()"), "2 / 2")
        self.picture("branches")
        # After a reload both are there, and the old one has all its turns.
        self.show(1200, "light")
        self.click("Previous branch")
        self.wait("current.turns.length === 4")
        self.assertIn("Paris", self.browser.evaluate("document.querySelector('.text').innerText"))
        self.assertEqual(self.browser.evaluate("document.activeElement.ariaLabel"), "Next branch")
        # Search finds what is in a branch that is not shown, and a file that was exported and imported has it.
        self.do("document.getElementById('search').value = 'italy'; document.getElementById('search').dispatchEvent(new Event('input'))")
        self.assertEqual(self.browser.evaluate("document.querySelectorAll('.entry').length"), 1)
        self.do("window.turnsBefore = JSON.stringify(conversations[0].turns); URL.createObjectURL = blob => { blob.text().then(text => { window.written = text }); return '#' }; exportAll()")
        self.wait("window.written !== undefined")
        self.do("const ended = remove(conversations[0]); ended.then(() => importText(written))")
        self.wait("conversations.length === 1 && !conversations[0].deleted")
        self.assertTrue(self.browser.evaluate("JSON.stringify(conversations[0].turns) === turnsBefore"))

    def test_a_cut_answer_goes_on(self):
        self.settings(temperature=0, thinking=False)
        self.ask("What is the capital of France?")
        whole = json.loads(self.wait_for_answer())["content"]
        self.do("select(null)")
        self.settings(temperature=0, thinking=False, max_tokens=3)
        self.ask("What is the capital of France?")
        cut = json.loads(self.wait_for_answer())
        self.assertTrue(whole.startswith(cut["content"]))
        self.assertNotEqual(whole, cut["content"])
        self.settings(max_tokens=100)
        self.click("Continue")
        self.wait("runs.size === 0 && !current.turns[1].error")
        self.assertEqual(self.browser.evaluate("current.turns[1].content"), whole)
        self.assertEqual(self.browser.evaluate("current.turns.length"), 2)
        # An answer that was edited goes on from what it now says.
        self.click("Edit", "document.querySelector('.turn.assistant')")
        self.do("document.activeElement.value = 'The capital'; document.querySelector('.edit').requestSubmit()")
        self.wait("current.turns[1].edited")
        self.click("Continue")
        self.wait("runs.size === 0 && !current.turns[1].edited")
        self.assertRegex(self.browser.evaluate("current.turns[1].content"), "^The capital of France")

    def test_a_cut_reasoning_is_closed_and_answered(self):
        self.settings(temperature=0, max_tokens=3)
        self.ask("What is the capital of France?")
        turn = json.loads(self.wait_for_answer())
        self.assertEqual((turn["content"], turn["error"]), ("", "cut at the length limit"))
        self.settings(max_tokens=100)
        self.click("Answer now")
        self.wait("runs.size === 0 && current.turns[1].content.length > 0")
        self.assertIn("France", self.browser.evaluate("current.turns[1].content"))
        closed = self.browser.evaluate("current.turns[1].reasoning")
        self.assertTrue(closed.startswith(turn["reasoning"]))
        self.assertLess(len(closed), len(turn["reasoning"]) + 20)  # One token more.

    def test_a_cut_reasoning_goes_on(self):
        self.settings(temperature=0)
        self.ask("What is the capital of France?")
        whole = json.loads(self.wait_for_answer())
        self.do("select(null)")
        self.settings(temperature=0, max_tokens=3)
        self.ask("What is the capital of France?")
        cut = json.loads(self.wait_for_answer())
        self.assertTrue(len(cut["reasoning"]) < len(whole["reasoning"]))
        self.settings(max_tokens=100)
        self.click("Continue")
        self.wait("runs.size === 0 && current.turns[1].content.length > 0")
        self.assertEqual(self.browser.evaluate("current.turns[1].reasoning"), whole["reasoning"])
        self.assertEqual(self.browser.evaluate("current.turns[1].content"), whole["content"])

    def test_settings_of_each_conversation(self):
        def sent():
            return json.loads(self.browser.evaluate("JSON.stringify(requestBody({ ...current, turns: [{ role: 'user', content: 'q' }, newAnswer()] }))"))
        self.settings(temperature=0, max_tokens=5)
        self.ask("one")
        self.wait_for_answer()
        self.do("document.getElementById('open-settings').click()")
        self.assertEqual(self.browser.evaluate("document.getElementById('settings-of').innerText"), "This conversation")
        self.do("""for (const [name, value] of Object.entries({ system: 'Be brief.', effort: 'high', budget: '7', temperature: '0.25', top_p: '0.5', max_tokens: '9' }))
            document.querySelector(`#settings [name=${name}]`).value = value""")
        self.picture("settings-of-a-conversation")
        self.do("document.getElementById('settings-done').click()")
        self.wait("!document.getElementById('settings').open")
        body = sent()
        self.assertEqual(body["messages"][0], {"role": "system", "content": "Be brief."})
        self.assertEqual({name: body[name] for name in ("temperature", "top_p", "max_tokens", "reasoning_effort", "thinking")},
                         {"temperature": 0.25, "top_p": 0.5, "max_tokens": 9, "reasoning_effort": "high", "thinking": {"type": "enabled", "budget_tokens": 7}})
        self.assertEqual(self.browser.evaluate("document.getElementById('think').innerText"), "Thinking: high")
        # Another conversation knows nothing of it; after a reload the first still has it.
        self.do("select(null)")
        self.ask("two")
        self.wait_for_answer()
        self.assertEqual((sent()["max_tokens"], "reasoning_effort" in sent()), (5, False))
        self.show(1200, "light")
        self.do("select(conversations.find(c => c.title === 'one'))")
        self.assertEqual(sent(), body)
        # Escape changes nothing; a list of tools that is none is not taken.
        self.do("document.getElementById('open-settings').click()")
        self.do("document.querySelector('#settings [name=budget]').value = 1")
        self.browser.press("Escape")
        self.wait("!document.getElementById('settings').open")
        self.assertEqual(sent(), body)
        self.do("document.getElementById('open-settings').click()")
        self.do("""const tools = document.querySelector('#settings [name=tools]'); tools.value = '{'; tools.dispatchEvent(new Event('input'));
            document.getElementById('settings-done').click()""")
        self.assertTrue(self.browser.evaluate("document.getElementById('settings').open"))
        self.assertIn("Not JSON", self.browser.evaluate("tools.validationMessage"))
        self.do("tools.value = ''; tools.dispatchEvent(new Event('input')); document.getElementById('as-default').click()")
        self.wait("!document.getElementById('settings').open")
        self.do("select(null)")
        self.assertEqual(sent()["reasoning_effort"], "high")

    def test_reasoning_has_a_time_and_a_budget(self):
        self.settings(temperature=0, budget="3", effort="high")
        self.ask("What is the capital of France?")
        turn = json.loads(self.wait_for_answer())
        self.assertIn("Paris", turn["content"])
        summary = self.browser.evaluate("document.querySelector('#log summary').innerText")
        self.assertRegex(summary, r"Thought(?: for [0-9.]+ s)? · [34] tokens · effort high · at most 3 tokens")

    def test_text_files_are_dropped_in(self):
        self.settings(temperature=0, thinking=False, max_tokens=5)
        self.drop("über.md", "Grüße\r\n```\nx\n```\n".encode())
        self.wait("files.length === 1")
        self.drop("wide.txt", "日本".encode("utf-16"))
        self.wait("files.length === 2")
        self.drop("photo.jpg", b"\xff\xd8\xff\x00")
        self.wait("!document.getElementById('notice').hidden")
        self.assertIn("photo.jpg is a picture", self.browser.evaluate("document.getElementById('notice').innerText"))
        self.picture("files")
        self.wait("/to send/.test(document.getElementById('meter-text').innerText)")
        self.ask("What do they say?")
        self.wait_for_answer()
        self.assertEqual(self.browser.evaluate("requestBody(current).messages[0].content"),
                         "über.md\n````\nGrüße\n```\nx\n```\n````\n\nwide.txt\n```\n日本\n```\n\nWhat do they say?")
        self.assertEqual(self.browser.evaluate("[...document.querySelectorAll('details.attached summary')].map(s => s.innerText).join('; ')"),
                         "über.md, 16 characters; wide.txt, 2 characters")
        self.show(1200, "light")
        self.assertEqual(self.browser.evaluate("current.turns[0].files[1].text"), "日本")

    def test_the_meter_of_the_context(self):
        self.settings(temperature=0)
        self.do("""window.seen = []; new MutationObserver(() => seen.push(document.getElementById('meter-text').innerText))
            .observe(document.getElementById('meter-text'), { childList: true })""")
        self.slow_answers()
        self.ask("Tell me a story.")  # Long enough to be drawn while it comes.
        turn = json.loads(self.wait_for_answer())
        read, written = map(int, re.match(r"(\d+) tokens read \(\d+ reused\), (\d+) written", turn["note"]).groups())
        self.assertEqual(turn["tokens"], read + written)
        self.assertEqual(self.browser.evaluate("document.getElementById('meter-text').innerText"), f"{round(100 * (read + written) / 4096)} %")
        self.assertEqual(self.browser.evaluate("document.querySelector('.meter').title"), f"{read + written} of 4,096 tokens of context")
        self.assertEqual(self.browser.evaluate("[meter.value, meter.max].join()"), f"{read + written},4096")
        self.assertTrue(self.browser.evaluate("seen.some(text => /tok\\/s/.test(text))"))
        self.browser.type(" house house house")
        count = self.server.post("/tokenize", {"prompt": " house house house"})["count"]
        self.wait(f"document.getElementById('meter-text').innerText.startsWith('{count} tokens to send · ') && document.querySelector('.meter').title.startsWith('{read + written + count} of')")

    def test_tool_calls_and_errors_are_shown(self):
        tool = {"type": "function", "function": {"name": "search_ticket", "description": "Search a ticket.",
                "parameters": {"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}}, "color": {"type": "string"}}, "required": ["tags", "color"]}}}
        self.settings(temperature=0, thinking=False, tools=json.dumps([tool]))
        self.ask("Search a ticket with tags cook, color golden, please.")
        self.wait_for_answer()
        self.assertIn("search_ticket", self.browser.evaluate("document.querySelector('.call').innerText"))
        self.settings(temperature=-1)
        self.ask("And in Rome?")
        self.wait("current.turns.length === 4 && runs.size === 0")
        self.assertIn("temperature", self.browser.evaluate("document.querySelector('.error').innerText"))
        self.picture("calls-and-errors")

    def test_a_tool_call_and_its_result_stay_in_the_history(self):
        self.do("""const calls = [{ id: 'c1', name: 'add', arguments: '{"a": 1}', result: '3' }];
            current = { id: 'x', version: 0, title: 'x', turns: [{ role: 'user', content: 'q' },
                { role: 'assistant', content: '', reasoning: '', calls }, { role: 'assistant' }] }""")
        messages = json.loads(self.browser.evaluate("JSON.stringify(requestBody(current).messages)"))
        self.assertEqual(messages[1]["tool_calls"], [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}])
        self.assertEqual(messages[2], {"role": "tool", "tool_call_id": "c1", "content": "3"})
        self.do("current.turns.pop(); conversations = [current]; settings.max_tokens = 5; settings.thinking = false; show()")
        self.assertEqual(self.browser.evaluate("document.querySelector('.call textarea').value"), "3")
        self.click("Send results")
        self.wait("current.turns.length === 3 && runs.size === 0")
        self.assertIn(self.browser.evaluate("current.turns[2].error ?? ''"), ("", "cut at the length limit"))

    def test_a_reload_during_an_answer_loses_nothing(self):
        self.start_a_long_answer()
        length = self.browser.evaluate("current.turns.at(-1).content.length")
        self.show(1200, "light")
        self.wait("current !== null && !current.turns.at(-1).active")
        self.assertEqual(self.browser.evaluate("current.turns[0].content"), "Tell me a very long story.")
        self.assertGreaterEqual(self.browser.evaluate("current.turns.at(-1).content.length"), length)
        self.wait("document.querySelector('.error')?.innerText.includes('interrupted')")

    def test_what_is_typed_survives_a_reload(self):
        self.browser.type("half a question")
        self.show(1200, "light")
        self.assertEqual(self.browser.evaluate("document.getElementById('ask').value"), "half a question")
        self.settings(temperature=0, thinking=False, max_tokens=3)
        self.ask("!")
        self.wait_for_answer()
        self.show(1200, "light")
        self.assertEqual(self.browser.evaluate("document.getElementById('ask').value"), "")

    def test_escape_leaves_what_is_in_front(self):
        self.start_a_long_answer()
        self.do("openSettings()")
        self.browser.press("Escape")
        self.wait("!document.getElementById('settings').open")
        self.assertTrue(self.browser.evaluate("runs.size > 0"))
        self.do("document.getElementById('search').focus()")
        self.browser.type("nothing of the kind")
        self.browser.press("Escape")
        self.wait("document.getElementById('search').value === ''")
        self.assertTrue(self.browser.evaluate("runs.size > 0"))
        # A question meanwhile is refused aloud, and stays.
        self.do("document.getElementById('ask').focus()")
        self.ask("Are you done?")
        self.wait("document.getElementById('notice').innerText.includes('Stop it first')")
        self.assertEqual(self.browser.evaluate("document.getElementById('ask').value"), "Are you done?")
        self.browser.press("Escape")
        self.wait("runs.size === 0 && document.getElementById('notice').hidden")

    def test_a_server_that_is_gone(self):
        self.settings(temperature=0, thinking=False, max_tokens=3)
        self.do("window.plainFetch = fetch; fetch = () => Promise.reject(new TypeError('Failed to fetch'))")
        self.ask("Are you there?")
        self.wait("runs.size === 0 && current?.turns.length === 2")
        self.assertIn("The server cannot be reached", self.browser.evaluate("document.querySelector('.error').innerText"))
        # The stream of one that went away behind a proxy ends as if it were whole.
        self.do("""fetch = (path, ...rest) => path !== 'v1/chat/completions' ? plainFetch(path, ...rest) : Promise.resolve(new Response(
            'data: {"choices":[{"delta":{"content":"Half an"},"finish_reason":null}]}\\n\\n'))""")
        self.click("Send again")
        self.wait("runs.size === 0 && current.turns.at(-1).content === 'Half an'")
        self.assertIn("interrupted", self.browser.evaluate("document.querySelector('.error').innerText"))
        # There was nothing to keep of the one that failed; this one is kept.
        self.assertIsNone(self.browser.evaluate("current.turns[1].branches ?? null"))
        self.do("fetch = plainFetch")
        self.click("Again")
        self.wait("runs.size === 0 && current.turns[1].branches?.tails.length === 2")

    def test_a_server_that_wants_a_key(self):
        with Server("--context", 4096, "--api-key", "open") as server:
            self.browser.open(server.url + "/")
            self.wait("document.getElementById('notice').innerText.includes('wants an API key')")
            self.click("Settings", "document.getElementById('notice')")
            self.do("document.querySelector('[name=key]').focus()")
            self.browser.type("open")
            self.browser.press("Enter")
            self.wait("document.title.startsWith('dsv4: ') && context === 4096 && document.getElementById('notice').hidden")
            self.assertEqual(self.browser.evaluate("document.getElementById('model').innerText.replace(/\\s+/g, ' ')"), "tiny ready")

    def test_two_tabs_keep_both(self):
        first = self.browser.session
        self.start_a_long_answer()
        second = self.browser.new_tab()
        try:
            self.show(1200, "light")
            self.wait("conversations.length === 1 && conversations[0].turns.at(-1).active")
            self.settings(temperature=0, thinking=False, max_tokens=3)
            self.ask("From the second tab")
            self.wait("conversations.length === 2 && runs.size === 0")
            # Into the conversation that the first tab is answering: refused, and what was typed stays.
            self.do("select(conversations.find(c => c.title.startsWith('Tell')))")
            self.ask("Not now")
            self.wait("!document.getElementById('notice').hidden")
            self.assertIn("Another tab", self.browser.evaluate("document.getElementById('notice').innerText"))
            self.assertEqual(self.browser.evaluate("document.getElementById('ask').value"), "Not now")
            self.browser.session = first
            self.wait("conversations.length === 2")
            self.browser.press("Escape")
            self.wait("runs.size === 0")
            # A write on top of one that this tab has not seen makes a copy.
            self.do("channel.onmessage = null")
            self.browser.session = second
            self.wait("!conversations.find(c => c.title.startsWith('Tell')).turns.at(-1).active")
            self.do("current.title = 'Tell from two'; keep(current).then(() => { window.kept = true })")
            self.wait("window.kept === true")
            self.browser.session = first
            self.do("keep(current)")
            self.wait("conversations.length === 3")
            titles = json.loads(self.browser.evaluate("JSON.stringify(conversations.map(c => c.title).sort())"))
            self.assertEqual(titles, ["From the second tab", "Tell from two", "Tell me a very long story. (copy)"])
        finally:
            self.browser.session = second
            self.browser.close_tab()
            self.browser.session = first

    def test_a_full_storage_is_said(self):
        self.settings(temperature=0, thinking=False, max_tokens=3)
        self.do("IDBObjectStore.prototype.put = () => { throw new DOMException('full', 'QuotaExceededError') }")
        self.ask("hello")
        self.wait("runs.size === 0 && !document.getElementById('notice').hidden")
        self.assertIn("full", self.browser.evaluate("document.getElementById('notice').innerText"))

    def test_delete_can_be_undone_and_what_was_open_stays_open(self):
        self.settings(temperature=0, max_tokens=40)
        self.ask("What is the capital of France?")
        self.wait_for_answer()
        self.do("document.querySelector('#log details').open = true; show()")
        self.assertTrue(self.browser.evaluate("document.querySelector('#log details').open"))
        self.do("document.querySelector('.entry button:last-child').click()")
        self.wait("conversations.length === 0")
        self.do("document.getElementById('notice-action').click()")
        self.wait("conversations.length === 1 && current !== null")
        self.show(1200, "light")
        self.wait("conversations.length === 1 && current.turns.length === 2")

    def test_copy_without_a_secure_context(self):
        self.do("""Object.defineProperty(navigator, 'clipboard', { value: undefined });
            document.addEventListener('copy', () => { window.copied = getSelection().toString() || document.activeElement.value })""")
        self.assertEqual(self.browser.evaluate_as_person("copy('some text'); window.copied"), "some text")

    def test_the_list_of_a_phone_closes(self):
        self.show(360, "light")
        for way in ("close-menu", "shade"):
            self.do("document.getElementById('menu').click()")
            self.wait("document.getElementById('nav').getBoundingClientRect().left === 0")  # It slides in.
            self.picture("phone-list")
            box = json.loads(self.browser.evaluate(f"JSON.stringify(document.getElementById('{way}').getBoundingClientRect())"))
            self.browser.click_at(box["right"] - 20, box["bottom"] - 10)
            self.wait("!document.getElementById('nav').classList.contains('open')")

    def test_search_rename_export_import(self):
        turns = [{"role": "user", "content": "the needle"}, {"role": "assistant", "content": "a", "reasoning": "", "calls": []}]
        text = json.dumps({"format": "dsv4 conversations", "version": 1,
                           "conversations": [{"title": "one", "turns": turns}, {"title": "two", "turns": []}]})
        self.do(f"importText({json.dumps(text)})")
        self.wait("conversations.length === 2 && conversations.every(c => c.version === 1)")
        self.do("document.getElementById('search').value = 'NEEDLE'; document.getElementById('search').dispatchEvent(new Event('input'))")
        self.assertEqual(self.browser.evaluate("[...document.querySelectorAll('.entry')].length"), 1)
        self.do("document.querySelector('.entry button').click()")
        self.click("Rename")
        self.assertEqual(self.browser.evaluate("[document.activeElement.id, document.activeElement.value].join()"), "name,one")
        self.browser.type("given up")
        self.browser.press("Escape")
        self.wait("document.activeElement.id === 'rename' && document.getElementById('title').innerText === 'one'")
        self.click("Rename")
        self.browser.type("renamed")
        self.browser.press("Enter")
        self.wait("current.version === 2")
        self.assertEqual(self.browser.evaluate("[document.getElementById('title').innerText, document.activeElement.id].join()"), "renamed,rename")
        self.do("URL.createObjectURL = blob => { blob.text().then(text => { window.written = text }); return '#' }; exportAll()")
        self.wait("window.written !== undefined")
        written = json.loads(self.browser.evaluate("window.written"))
        written = next(c for c in written["conversations"] if c["turns"])
        self.assertEqual((written["title"], written["turns"]), ("renamed", turns))
        self.picture("library")
        self.show(360, "light")
        self.assertLessEqual(self.browser.evaluate("document.documentElement.scrollWidth"), 360)
        self.picture("library-narrow")
        self.do("importText('{}')")
        self.wait("document.getElementById('notice').innerText.includes('Not imported')")
        self.assertEqual(self.browser.evaluate("conversations.map(c => c.title).sort().join()"), "renamed,two")

    def test_the_settings_by_hand(self):
        self.do("document.getElementById('open-settings').click()")
        self.assertTrue(self.browser.evaluate("document.getElementById('settings').open"))
        self.picture("settings")
        self.do("document.querySelector('[name=top_k]').value = 5; document.getElementById('settings-done').click()")
        self.wait("!document.getElementById('settings').open && Number(settings.top_k) === 5")

    def test_nothing_comes_from_elsewhere(self):
        self.assertTrue(all(url.startswith(self.server.url) for url in self.browser.requests()))
        self.assertEqual(self.browser.complaints(), [])

    def test_the_policy_allows_no_code_in_the_document(self):
        weight = 0
        for path in {urllib.parse.urlsplit(url).path for url in self.browser.requests()}:
            if not path.startswith("/v1/"):
                with urllib.request.urlopen(self.server.url + path) as reply:
                    if path == "/props":  # Data, as below /v1/.
                        self.assertEqual(reply.headers.get_content_type(), "application/json")
                        continue
                    policy = reply.headers["Content-Security-Policy"]
                    weight += len(zlib.compress(reply.read()))
                self.assertNotIn("unsafe", policy)
                self.assertIn("default-src 'none'", policy)
        self.assertGreater(weight, 5000)
        self.assertLess(weight, 400 << 10)
        print(f"page weight: {weight / 1024:.1f} KB compressed", flush=True)
        self.do("""const script = document.createElement('script'); script.append('window.ran = 1'); document.body.append(script);
            const probe = document.createElement('button'); document.body.append(probe); probe.setAttribute('style', 'color: red')""")
        self.assertEqual(self.browser.evaluate("String(window.ran)"), "undefined")
        self.assertEqual(self.browser.evaluate("probe.style.color"), "")
        self.assertEqual(self.browser.evaluate("(() => { try { document.body.innerHTML = 'x'; return 'done' } catch (e) { return e.name } })()"), "TypeError")
        with self.assertRaises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(self.server.url + "/page/no.js")
        self.assertEqual(refused.exception.code, 404)


if __name__ == "__main__":
    page_testing.main()
