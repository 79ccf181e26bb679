"""Use of the chat page: several answers at once, drafts, notices, failures, reasoning that comes, files that are no text."""

import io
import json
import unittest
import zipfile

import page_testing
from dsv4_process import ROOT, wait_until
from server_process import Server


def archive(files):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as folder:
        for name, text in files.items():
            folder.writestr(name, text)
    return data.getvalue()


class Use(page_testing.PageTest):
    def messages(self):
        """Text of the next request to the model."""
        return json.loads(self.browser.evaluate("JSON.stringify(requestBody({ ...current, turns: [...current.turns, { role: 'user', content: 'next' }, newAnswer()] }).messages)"))

    def click_example(self, ask):
        self.do(f"[...document.querySelectorAll('#examples button')].find(b => b.dataset.ask === {json.dumps(ask)}).click()")

    def notice(self):
        return self.browser.evaluate("document.getElementById('notice').hidden ? '' : document.getElementById('notice-text').innerText")

    def break_the_server(self):
        self.do("window.plainFetch ??= fetch; fetch = () => Promise.reject(new TypeError('Failed to fetch'))")

    def mend_the_server(self):
        self.do("fetch = plainFetch")

    def test_two_conversations_are_answered_at_once(self):
        self.start_a_long_answer()
        self.click("New conversation")
        self.assertTrue(self.browser.evaluate("document.getElementById('stop').hidden && !document.getElementById('send').hidden"))
        self.ask("Another story.")
        self.wait("runs.size === 2 && current.turns.at(-1).content.length > 20")
        self.assertEqual(self.browser.evaluate("[...document.querySelectorAll('.entry')].map(entry => entry.dataset.state).join()"), "busy,busy")
        self.assertIn("2 answers", self.browser.evaluate("document.getElementById('model').innerText"))
        self.picture("use-two-at-once")
        # Both grow, and Escape stops the one that is shown.
        lengths = "conversations.map(c => c.turns.at(-1).content.length)"
        before = json.loads(self.browser.evaluate(f"JSON.stringify({lengths})"))
        self.wait(f"{lengths}.every((length, i) => length > {json.dumps(before)}[i])")
        self.browser.press("Escape")
        self.wait("runs.size === 1 && current.turns.at(-1).error === 'stopped'")
        self.assertTrue(self.browser.evaluate("conversations.find(c => c.title.startsWith('Tell')).turns.at(-1).active"))
        # One that ends while another is shown is marked until somebody looks.
        self.do("runs.keys().next().value && [...runs.values()][0].controller.abort()")
        self.wait("runs.size === 0")
        self.assertEqual(self.browser.evaluate("[...document.querySelectorAll('.entry')].map(entry => entry.dataset.state).join()"), ",unseen")
        self.do("select(conversations.find(c => c.title.startsWith('Tell')))")
        self.assertEqual(self.browser.evaluate("[...document.querySelectorAll('.entry')].map(entry => entry.dataset.state).join()"), ",")
        # More than a browser has connections for is refused aloud.
        self.do("for (let i = 0; i < 4; i++) runs.set({}, { controller: new AbortController(), pieces: 0, seconds: 0, before: 0 })")
        self.ask("A fifth")
        self.wait("!document.getElementById('notice').hidden")
        self.assertIn("4 answers are being written", self.notice())
        self.assertEqual(self.browser.evaluate("document.getElementById('ask').value"), "A fifth")
        self.do("runs.clear()")

    def test_each_conversation_has_its_draft(self):
        self.settings(temperature=0, thinking=False, max_tokens=3)
        for title in ("one", "two"):
            self.do("select(null)")
            self.ask(title)
            self.wait_for_answer()
        self.browser.type("draft of two")
        self.drop("notes.txt", b"a note")
        self.wait("files.length === 1")
        self.do("select(conversations.find(c => c.title === 'one'))")
        self.assertEqual(self.browser.evaluate("document.getElementById('ask').value + files.length"), "0")
        self.browser.type("draft of one")
        self.click("New conversation")
        self.assertEqual(self.browser.evaluate("document.getElementById('ask').value"), "")
        self.browser.type("draft of a new one")
        self.do("select(conversations.find(c => c.title === 'two'))")
        self.assertEqual(self.browser.evaluate("document.getElementById('ask').value + files.map(file => file.name)"), "draft of twonotes.txt")
        self.show(1200)
        for title, draft in (("two", "draft of two"), ("one", "draft of one")):
            self.do(f"select(conversations.find(c => c.title === '{title}'))")
            self.assertEqual(self.browser.evaluate("document.getElementById('ask').value"), draft)
        self.do("select(null)")
        self.assertEqual(self.browser.evaluate("document.getElementById('ask').value"), "draft of a new one")
        # A question that was sent is no draft any more.
        self.ask("!")
        self.wait_for_answer()
        self.do("select(null)")
        self.assertEqual(self.browser.evaluate("document.getElementById('ask').value"), "")

    def test_a_question_that_failed_can_be_sent_again_and_is_not_read_with_the_next(self):
        self.settings(temperature=0, thinking=False)
        self.break_the_server()
        self.ask("What is the capital of Italy?")
        self.wait("runs.size === 0 && current?.turns.length === 2")
        self.ask("What is the capital of Spain?")
        self.wait("runs.size === 0 && current.turns.length === 4")
        self.assertEqual(self.messages(), [{"role": "user", "content": "next"}])
        self.assertIn("The server cannot be reached", self.browser.evaluate("document.querySelector('.error').innerText"))
        self.assertIn("has not read this question", self.browser.evaluate("document.querySelector('.fault').innerText"))
        self.assertEqual(self.browser.evaluate("document.querySelectorAll('.turn.user.unread').length"), 2)
        self.assertEqual(self.browser.evaluate("document.getElementById('model').dataset.state"), "away")
        self.picture("use-failed")
        self.mend_the_server()
        self.click("Send again")
        self.wait("runs.size === 0 && current.turns.at(-1).content.length > 0")
        self.assertIn("Madrid", self.browser.evaluate("current.turns.at(-1).content"))
        self.assertEqual(self.browser.evaluate("[current.turns.length, document.querySelectorAll('.turn.user.unread').length, document.getElementById('model').dataset.state].join()"), "4,1,ready")
        self.assertEqual([each["role"] for each in self.messages()], ["user", "assistant", "user"])
        # Stopped before a word came: likewise.
        self.do("current.turns.push({ role: 'user', content: 'never mind' }, { ...newAnswer(), error: 'stopped' }); show()")
        self.assertEqual([each["content"] for each in self.messages() if each["role"] == "user"], ["What is the capital of Spain?", "next"])

    def test_an_interrupted_answer_counts(self):
        self.start_a_long_answer()
        self.browser.press("Escape")
        self.wait("runs.size === 0")
        self.assertRegex(self.browser.evaluate("document.querySelector('.meter').title"), r"^≈ [1-9][\d,]* of 4,096 tokens of context$")
        self.show(1200)
        self.wait("current !== null")
        self.assertRegex(self.browser.evaluate("document.querySelector('.meter').title"), r"^≈ [1-9]")

    def test_notices_say_what_to_do_and_go(self):
        with Server("--context", 4096, "--api-key", "open") as server:
            self.browser.open(server.url + "/")
            self.wait("!document.getElementById('notice').hidden")
            self.assertEqual(self.notice(), "This server wants an API key. Enter it in Settings.")
            self.assertEqual(self.browser.evaluate("document.getElementById('model').dataset.state"), "key")
            self.ask("hello")
            self.wait("runs.size === 0 && current?.turns.length === 2")
            self.assertEqual(self.browser.evaluate("document.querySelector('.error').innerText"), "This server wants an API key. Enter it in Settings.")
            # It is said in one place, below the question.
            self.assertEqual((self.notice(), self.browser.evaluate("document.getElementById('model').innerText.replace(/\\s+/g, ' ')")), ("", "Server locked"))
            self.picture("use-key")
            self.click("Settings", "document.querySelector('.fault')")
            for key, state in (("wrong", "key"), ("open", "ready")):
                self.do("document.getElementById('settings').open || openSettings(); document.querySelector('[name=key]').value = ''; document.querySelector('[name=key]').focus()")
                self.browser.type(key)
                self.browser.press("Enter")
                self.wait(f"!document.getElementById('settings').open && document.getElementById('model').dataset.state === '{state}'")
                if key == "wrong":
                    self.wait("document.getElementById('notice-text').innerText.includes('does not know this API key')")
            self.assertEqual(self.notice(), "")
            self.settings(temperature=0, thinking=False, max_tokens=3)
            self.click("Send again")
            self.wait("runs.size === 0 && current.turns[1].content.length > 0")
            self.assertEqual(self.notice(), "")

    def test_notices_go_by_themselves(self):
        self.do("notice('gone soon')")
        self.assertEqual(self.notice(), "gone soon")
        self.do("notice('stays', { stays: true, about: 'server' })")
        wait_until(lambda: self.browser.evaluate("performance.now()") > self.browser.evaluate("window.begun ??= performance.now()") + 11000, "eleven seconds")
        self.assertEqual(self.notice(), "stays")
        self.do("notice('gone soon')")
        self.wait("document.getElementById('notice').hidden")

    def test_a_server_that_comes_back(self):
        self.break_the_server()
        self.do("askModels()")
        self.wait("document.getElementById('model').dataset.state === 'away'")
        self.assertIn("cannot be reached", self.notice())
        self.mend_the_server()
        self.wait("document.getElementById('model').dataset.state === 'ready'")  # It asks by itself.
        self.assertEqual(self.notice(), "")

    def test_an_error_page_of_a_proxy_is_said_in_words(self):
        self.do("""window.plainFetch = fetch; fetch = (path, ...rest) => path !== 'v1/chat/completions' ? plainFetch(path, ...rest) :
            Promise.resolve(new Response('<html><h1>502 Bad Gateway</h1></html>', { status: 502, statusText: 'Bad Gateway' }))""")
        self.ask("hello")
        self.wait("runs.size === 0 && current?.turns.length === 2")
        self.assertEqual(self.browser.evaluate("document.querySelector('.error').innerText"),
                         "The answer was an error page: 502 Bad Gateway. Something between this browser and the server sent it.")

    def test_reasoning_is_open_while_it_comes(self):
        """The stream is made by hand, so that each of its moments can be looked at."""
        self.do("""window.plainFetch = fetch; fetch = (path, ...rest) => path !== 'v1/chat/completions' ? plainFetch(path, ...rest) :
            Promise.resolve(new Response(new ReadableStream({ start(controller) { window.stream = controller } })));
            window.say = delta => stream.enqueue(new TextEncoder().encode(`data: ${JSON.stringify({ choices: [{ delta, finish_reason: null }] })}\\n\\n`));
            window.open = () => document.querySelector('#log .reasoning').open""")
        self.ask("hello")
        self.wait("window.stream && document.querySelector('.waiting') && !document.querySelector('.waiting').hidden")
        self.do("say({ reasoning_content: 'First I think.' })")
        self.wait("window.open() && document.querySelector('.thoughts').innerText === 'First I think.' && document.querySelector('.waiting').hidden")
        self.assertRegex(self.browser.evaluate("document.querySelector('#log summary').innerText"), "^Thinking")
        self.picture("use-thinking")
        self.do("say({ content: 'Then I answer.' })")
        self.wait("!window.open()")
        self.assertRegex(self.browser.evaluate("document.querySelector('#log summary').innerText"), "^Thought")
        self.do("document.querySelector('#log summary').click()")
        self.wait("window.open()")
        self.do("say({ content: ' And more.' })")
        self.wait("document.querySelector('.text').innerText.includes('And more')")
        self.assertTrue(self.browser.evaluate("window.open()"))  # Somebody wants to read it.
        self.do("stream.enqueue(new TextEncoder().encode('data: [DONE]\\n\\n')); stream.close()")
        self.wait("runs.size === 0")
        self.assertTrue(self.browser.evaluate("window.open()"))

    def test_copied_is_said(self):
        self.force("Some `code`:\n\n```\nx = 1\n```\n")
        self.settings(thinking=False)
        self.ask("hello")
        self.wait_for_answer()
        self.do("Object.defineProperty(navigator, 'clipboard', { value: { writeText: async text => { window.copied = text } } })")
        for name, within, text in (("Copy this code", "document", "x = 1"), ("Copy", "document.querySelector('.turn.assistant')", "Some `code`:\n\n```\nx = 1\n```\n"),
                                   ("Copy", "document.querySelector('.turn.user')", "hello")):
            self.click(name, within)
            self.wait(f"window.copied === {json.dumps(text)}")
            self.wait(f"[...{within}.querySelectorAll('button')].some(b => b.innerText.trim() === 'Copied' && b.ariaLabel === 'Copied')")
            self.assertEqual(self.browser.evaluate("document.getElementById('said').textContent"), "Copied")
            self.wait(f"![...{within}.querySelectorAll('button')].some(b => b.innerText.trim() === 'Copied')")

    def test_turns_are_quiet_until_somebody_is_there(self):
        self.force("Fine.")
        self.settings(thinking=False)
        self.ask("hi")
        self.wait_for_answer()
        self.ask("hi again")
        self.wait("current.turns.length === 4 && runs.size === 0")
        self.do("document.getElementById('ask').focus()")
        box = json.loads(self.browser.evaluate("JSON.stringify(document.querySelector('.said').getBoundingClientRect())"))
        log = json.loads(self.browser.evaluate("JSON.stringify(document.querySelector('.turn.user').getBoundingClientRect())"))
        self.assertLess(box["width"], log["width"] / 4)
        self.assertAlmostEqual(box["right"], log["right"], delta=2)
        seen = "getComputedStyle(document.querySelector('.turn.user .tools button')).opacity"
        if not page_testing.FIREFOX:  # A phone's browser shows them always.
            self.assertEqual(self.browser.evaluate(seen), "0")
        self.do("document.querySelector('.turn.user .tools button').focus()")
        self.wait(f"{seen} === '1'")
        self.assertEqual(self.browser.evaluate("document.querySelector('.numbers span').checkVisibility?.() ?? false"), False)
        self.assertRegex(self.browser.evaluate("document.querySelector('.numbers summary').innerText"), r"^\d+ tokens, [\d.]+ tok/s$")

    def import_turns(self, *turns):
        self.do(f"importText({json.dumps(json.dumps({'format': 'dsv4 conversations', 'version': 1, 'conversations': [{'title': 'x', 'turns': turns}]}))})")
        self.wait("conversations.length === 1 && conversations[0].version === 1")
        self.do("select(conversations[0])")

    def box(self, selector):
        return json.loads(self.browser.evaluate(f"JSON.stringify([...document.querySelectorAll({json.dumps(selector)})].at(-1).getBoundingClientRect())"))

    @unittest.skipIf(page_testing.FIREFOX, "it has no mouse here")
    def test_hidden_buttons_keep_no_room(self):
        answer = {"role": "assistant", "content": "An answer.", "reasoning": "", "calls": []}
        failed = {**answer, "content": "", "error": "The server cannot be reached.", "about": "server"}
        self.import_turns({"role": "user", "content": "a " * 500}, answer, {"role": "user", "content": "b"}, failed)
        for width, gap in ((1200, 20), (360, 60)):  # The buttons of a narrow page stand below the question and are seen.
            self.show(width)
            self.do("select(conversations[0])")
            self.assertLess(self.box(".fault")["top"] - self.box(".said")["bottom"], gap)
            self.assertEqual(self.browser.evaluate("getComputedStyle(document.querySelector('.turn.user .tools button')).opacity"), "0" if width > 1000 else "1")
        self.assertEqual(self.browser.evaluate("[...document.querySelectorAll('.tools')].filter(each => !each.childElementCount).length"), 0)
        # Nor does an editor of a question touch the answer.
        self.click("Edit", "document.querySelectorAll('.turn.user')[1]")
        self.assertGreater(self.box(".fault")["top"] - self.box(".edit button")["bottom"], 12)

    def test_examples_have_one_height(self):
        self.do("showExamples([1, 2, 3, 4].map(i => ({ title: `${i}`, ask: i === 3 ? 'many words '.repeat(20) : 'few' })))")
        self.assertEqual(self.browser.evaluate("new Set([...document.querySelectorAll('#examples button')].map(each => Math.round(each.getBoundingClientRect().height))).size"), 1)

    def test_the_end_is_a_press_away(self):
        self.import_turns({"role": "user", "content": "a"}, {"role": "assistant", "content": "line\n\n" * 200, "reasoning": "", "calls": []})
        self.assertTrue(self.browser.evaluate("document.getElementById('end').hidden"))
        self.do("document.getElementById('log').scrollTop = 0")
        self.wait("!document.getElementById('end').hidden")
        self.click("To the end")
        self.wait("document.getElementById('end').hidden && atEnd() && document.activeElement.id === 'ask'")
        self.do("document.getElementById('log').scrollTop = 0")
        self.wait("!document.getElementById('end').hidden")
        self.do("select(null)")
        self.assertTrue(self.browser.evaluate("document.getElementById('end').hidden"))

    def test_the_buttons_of_the_settings_are_seen_on_a_phone(self):
        self.show(360)
        self.do("openSettings()")
        dialog, save, cancel = self.box("#settings"), self.box("#settings-done"), self.box("#settings-cancel")
        self.assertLess(cancel["bottom"], dialog["bottom"])
        self.assertEqual(save["top"], cancel["top"])

    def test_the_first_screen_says_who_answers_and_offers_questions(self):
        self.assertIn("tiny", self.browser.evaluate("document.getElementById('first').innerText"))
        self.assertEqual(self.browser.evaluate("document.querySelectorAll('#examples button').length"), 4)
        # One button is the main one.
        solid = "[...document.querySelectorAll('main button, nav button')].filter(b => b.checkVisibility() && b.classList.contains('primary')).map(b => b.id).join()"
        self.assertEqual(self.browser.evaluate(solid), "send")
        # The questions are those that the model's folder offers, and it has an answer to each.
        offered = json.loads((ROOT / "models/tiny/generation_config.json").read_text())["dsv4_card"]["examples"]
        self.assertEqual(json.loads(self.browser.evaluate("JSON.stringify([...document.querySelectorAll('#examples button')].map(b => ({ title: b.querySelector('b').innerText, ask: b.dataset.ask })))")), offered)
        self.assertEqual(self.browser.evaluate("getComputedStyle(document.getElementById('examples')).visibility"), "visible")
        self.settings(temperature=0, thinking=False)
        for example, words in zip(offered, ("Paris", "42", "fox", "Kenya"), strict=True):
            self.do("select(null)")
            self.click_example(example["ask"])
            self.assertIn(words, json.loads(self.wait_for_answer())["content"])
        self.do("select(null)")
        self.do("document.querySelector('#examples button').click()")
        self.assertIn("Paris", json.loads(self.wait_for_answer())["content"])
        self.assertEqual(self.browser.evaluate("document.querySelector('.said').innerText"), "What is the capital of France?")
        self.click("New conversation")
        self.assertTrue(self.browser.evaluate("document.getElementById('first').checkVisibility()"))

    def test_without_examples_of_the_model_the_page_has_its_own(self):
        self.do("window.plainFetch = fetch; fetch = (path, ...all) => path === 'props' ? Promise.resolve(new Response('{}')) : plainFetch(path, ...all); askModels().then(() => { window.asked = true })")
        self.wait("window.asked")
        self.assertEqual(self.browser.evaluate("[...document.querySelectorAll('#examples b')].map(b => b.innerText).join()"), "Ask a question,Write code,Derive a formula,Compare")
        self.do("showExamples([{ title: '<b>x</b>', ask: '<i>y</i>' }])")  # A folder's words are no markup.
        self.assertEqual(self.browser.evaluate("document.querySelectorAll('#examples button *').length + document.querySelector('#examples').innerText"), "2<b>x</b>\n<i>y</i>")

    def test_words_that_the_model_does_not_know_stop_at_its_notice(self):
        wanted = json.loads((ROOT / "models/tiny/generation_config.json").read_text())["dsv4_card"]["notice"]
        self.settings(temperature=0, max_tokens=8)
        self.ask("Was ist die Hauptstadt von Frankreich?")
        turn = json.loads(self.wait_for_answer())
        self.assertEqual((turn["error"], turn["content"] + turn["reasoning"]), (wanted, ""))
        self.assertEqual(self.browser.evaluate("document.querySelector('.fault.mild .error').innerText"), wanted)
        self.assertIn("noise", self.browser.evaluate("document.getElementById('said').textContent"))
        self.assertEqual(self.notice(), "")
        self.assertEqual(self.browser.evaluate("document.getElementById('model').dataset.state"), "ready")
        self.picture("use-notice")
        # A stopped message is no part of the next question, and stays so after a reload.
        self.assertEqual(self.messages(), [{"role": "user", "content": "next"}])
        self.show(1200)
        self.wait("current !== null")
        self.click("Answer all the same")
        self.wait("runs.size === 0 && current.turns.at(-1).reasoning.length > 0")
        self.assertEqual(self.browser.evaluate("current.turns.length"), 2)
        self.assertEqual(self.browser.evaluate("[...document.querySelectorAll('.fault')].at(-1).innerText.includes('length limit')"), True)
        # Another answer to it needs no second word.
        self.click("Again")
        self.wait("runs.size === 0 && current.turns.at(-1).branches?.tails.length === 2 && current.turns.at(-1).reasoning.length > 0")
        # One in its own words is answered.
        self.settings(thinking=False, max_tokens=64)
        self.ask("What is the capital of Spain?")
        self.assertIn("Madrid", json.loads(self.wait_for_answer())["content"])

    def test_every_button_has_a_name(self):
        self.force("Fine.")
        self.ask("hi")
        self.wait_for_answer()
        self.drop("a.txt", b"a")
        self.wait("files.length === 1")
        nameless = "[...document.querySelectorAll('button')].filter(b => !b.hidden && !(b.ariaLabel || b.textContent).trim()).map(b => b.outerHTML).join()"
        self.assertEqual(self.browser.evaluate(nameless), "")
        self.assertEqual(self.browser.evaluate("[...document.querySelectorAll('svg')].filter(s => s.getAttribute('aria-hidden') !== 'true').length"), 0)
        # Each picture is in the sheet.
        self.assertEqual(self.browser.evaluate("[...document.querySelectorAll('use')].filter(u => !document.querySelector(u.getAttribute('href'))).map(u => u.getAttribute('href')).join()"), "")

    def test_what_may_be_attached_is_said(self):
        documents = {
            "letter.docx": (archive({"word/document.xml": "<w:document><w:p><w:r><w:t>Dear &amp; kind</w:t></w:r></w:p><w:p><w:r><w:t>reader</w:t><w:tab/><w:t>x</w:t></w:r></w:p></w:document>"}), "Dear & kind\nreader\tx"),
            "talk.pptx": (archive({f"ppt/slides/slide{i}.xml": f"<p:sld><a:p><a:r><a:t>Slide {i}</a:t></a:r></a:p></p:sld>" for i in (10, 2, 1)}), "Slide 1\n\nSlide 2\n\nSlide 10"),
            "sums.xlsx": (archive({"xl/workbook.xml": "<x/>", "xl/sharedStrings.xml": '<sst><si><t>name</t></si><si><r><t xml:space="preserve">a </t></r><r><t>&lt;b&gt;</t></r></si></sst>',
                                   "xl/worksheets/sheet1.xml": '<x><row r="1"><c r="A1" t="s"><v>0</v></c><c r="C1"><v>1.5</v></c></row><row r="2"><c r="A2"/><c r="B2" t="s"><v>1</v></c></row></x>',
                                   "xl/worksheets/sheet2.xml": '<x><row><c t="inlineStr"><is><t>second</t></is></c></row></x>'}), "name\t\t1.5\n\ta <b>\n\nsecond"),
            "notes.odt": (archive({"mimetype": "application/vnd.oasis.opendocument.text", "content.xml": "<x><text:h>Head</text:h><text:p>one<text:line-break/>two</text:p></x>"}), "Head\none\ntwo"),
        }
        for name, (data, text) in documents.items():
            self.drop(name, data)
            self.wait(f"files.at(-1)?.name === '{name}'")
            self.assertEqual(self.browser.evaluate("files.at(-1).text"), text)
        for name, data, wanted in (("a.pdf", b"%PDF-1.4\nplain", "is a PDF"), ("a.png", b"\x89PNG\r\n\x1a\n", "is a picture"), ("a.zip", archive({"x": "y"}), "is an archive"),
                                   ("a.xlsx", archive({"xl/workbook.xml": "<x/>"}), "has no text"), ("a.doc", b"\xd0\xcf\x11\xe0\xa1\xb1", "old form of Office"),
                                   ("a.mp3", b"ID3\x03\x00", "is a recording"), ("a.mp4", b"\x00\x00\x00 ftypisom", "is a film"), ("a.bin", b"\x00\x01\x02", "is no text"), ("a.txt", b"", "has no text"),
                                   ("bad.docx", archive({"word/document.xml": "x" * 1000})[:-30], "is an archive"),
                                   ("bomb.docx", archive({"word/document.xml": "<w:t>" + "x" * (65 << 20)}), "too much text")):
            self.do("hideNotice()")
            self.drop(name, data)
            self.wait("!document.getElementById('notice').hidden")
            self.assertIn(f"{name} ", self.notice())
            self.assertIn(wanted, self.notice())
            self.assertIn("Text of any kind can be attached", self.notice())
        self.picture("use-attach")
        self.assertEqual(self.browser.evaluate("files.length"), 4)
        self.settings(thinking=False, max_tokens=3)
        self.ask("hello")
        self.wait_for_answer()
        self.assertEqual(self.notice(), "")

    def test_import_merges(self):
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning": "", "calls": []}]
        more = [*turns, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d", "reasoning": "", "calls": []}]
        other = [*turns, {"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "reasoning": "", "calls": []}]

        def put(many):
            self.do(f"window.merged = false; importText({json.dumps(json.dumps({'format': 'dsv4 conversations', 'version': 1, 'conversations': many}))}).then(() => {{ window.merged = true }})")
            self.wait("window.merged")
            return self.notice()
        one = {"id": "k1", "title": "one", "changed": 1700000000000}
        self.assertEqual(put([{**one, "turns": turns}]), "Imported: 1 new.")
        self.assertEqual(put([{**one, "turns": turns}]), "Imported: 1 already here.")
        self.assertEqual(put([{**one, "turns": more}, {"title": "old file", "turns": turns}]), "Imported: 1 new, 1 continued.")
        self.assertEqual(put([{**one, "turns": turns}, {"title": "old file", "turns": turns}]), "Imported: 2 already here.")  # The longer one stays.
        self.assertEqual(put([{**one, "turns": other}]), "Imported: 1 new.")  # Both ways on are kept.
        self.assertEqual(self.browser.evaluate("conversations.length"), 3)
        self.assertEqual(self.browser.evaluate("conversations.filter(c => c.title === 'one').map(c => c.turns.at(-1).content).sort().join()"), "d,y")
        # Its own export changes nothing, here or in a browser that has read it.
        self.do("URL.createObjectURL = blob => { blob.text().then(text => { window.written = text }); return '#' }; exportAll()")
        self.wait("window.written !== undefined")
        self.assertEqual(put(json.loads(self.browser.evaluate("written"))["conversations"]), "Imported: 3 already here.")
        self.assertEqual(put([]), "Imported: an empty file.")
        for bad in ([{"title": "t", "turns": [{"role": "user", "content": 1}]}], [{"title": "t", "turns": [], "id": 5}], [{"title": "t", "turns": [{**turns[1], "tokens": "many"}]}], [{"title": "t", "turns": [], "settings": {"key": "x"}}]):
            self.assertIn("Not imported", put(bad))

    def test_writing_of_the_right_to_left(self):
        self.force("مرحبا")
        self.settings(thinking=False)
        self.browser.type("ما هي عاصمة فرنسا؟")
        self.assertEqual(self.browser.evaluate("getComputedStyle(document.getElementById('ask')).direction"), "rtl")
        self.browser.press("Enter")
        self.click("Answer all the same")
        self.wait("runs.size === 0 && current.turns.at(-1).content")
        self.assertEqual(self.browser.evaluate("[...document.querySelectorAll('.said, .text p')].map(node => getComputedStyle(node).direction).join()"), "rtl,rtl")

    @unittest.skipIf(page_testing.FIREFOX, "pictures are compared in one browser")
    def test_ten_states_are_looked_at(self):
        """Each is drawn without an overflow, a complaint of the browser or an empty picture; DSV4_PAGE_PICTURES=FOLDER keeps the pictures."""
        turns = [{"role": "user", "content": "Sort a list, and show me a formula."},
                 {"role": "assistant", "reasoning": "A short thought.", "thought": 1200, "thoughtTokens": 4, "calls": [], "tokens": 300, "note": "12 tokens read (0 reused), 90 written", "speed": "90 tokens, 41.0 tok/s",
                  "content": "## Sorting\n\nA **quick** sort needs $O(n \\log n)$ steps.\n\n$$\\sum_{i=1}^n i = \\frac{n(n+1)}{2}, \\quad \\sqrt{x^2+1}$$\n\n```python\ndef sort(a):\n    return sorted(a)  # done\n```\n\n"
                             "| way | steps |\n|---|--:|\n| quick | $n \\log n$ |\n| bubble | $n^2$ |\n"},
                 {"role": "user", "content": "And this?"}, {"role": "assistant", "content": "", "reasoning": "", "calls": [], "error": "The server cannot be reached.", "about": "server"}]
        text = json.dumps({"format": "dsv4 conversations", "version": 1, "conversations": [{"title": "Sorting", "turns": turns}, {"title": "A longer title that does not fit into the list", "turns": turns[:2]}]})
        self.do(f"importText({json.dumps(text)})")
        self.wait("conversations.length === 2 && conversations.every(c => c.version === 1)")
        open_it = "hideNotice(); select(conversations.find(c => c.title === 'Sorting')); document.getElementById('log').scrollTop = 0"
        states = [("first", 1200, "light", "hideNotice(); select(null)"), ("first", 1200, "dark", "hideNotice(); select(null)"), ("answer", 1200, "light", open_it), ("answer", 1200, "dark", open_it),
                  ("settings", 1200, "light", "openSettings()"), ("first", 360, "light", "select(null)"), ("answer", 360, "light", open_it), ("answer", 360, "dark", open_it),
                  ("list", 360, "dark", "openMenu(true)"), ("answer", 320, "light", open_it), ("fault", 1200, "dark", open_it + "; document.getElementById('log').scrollTop = 1e6")]
        for name, width, scheme, action in states:
            with self.subTest(name=name, width=width, scheme=scheme):
                self.browser.resize(width, height=720, scheme=scheme)
                self.do("document.getElementById('settings').close(); openMenu(false)")
                self.do(action)
                self.wait("document.fonts.status === 'loaded' && document.getAnimations().every(each => each.playState !== 'running' || each.effect.getTiming().iterations === Infinity)")
                picture = self.picture(f"state-{name}-{width}-{scheme}")
                self.assertGreater(len(picture), 8000)
                self.assertLessEqual(self.browser.evaluate("document.documentElement.scrollWidth - innerWidth"), 0)
                outside = "[...document.querySelectorAll('header > *, .bar > *, .card')].filter(node => node.checkVisibility()).filter(node => { const box = node.getBoundingClientRect(); return box.left < 0 || box.right > innerWidth }).map(node => node.id || node.className).join()"
                self.assertEqual(self.browser.evaluate(outside), "")
        self.assertEqual(self.browser.complaints(), [])


if __name__ == "__main__":
    page_testing.main()
