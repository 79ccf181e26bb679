"""How the chat page draws text: Markdown, code, formulas, as it grows and at once."""

import json
import time

import page_testing


class PageText(page_testing.PageTest):
    def test_growing_text_keeps_the_selection(self):
        self.do("""window.probe = document.createElement('div'); document.body.append(probe); showText(probe, 'first words');
            getSelection().selectAllChildren(probe.querySelector('p')); showText(probe, 'first words and `more`\\n\\nnext')""")
        self.assertEqual(self.browser.evaluate("getSelection().toString().slice(0, 11)"), "first words")
        self.assertEqual(self.browser.evaluate("probe.querySelector('code').textContent"), "more")

    def test_markdown(self):
        text = ("# Head\n\nSome **bold** and *thin* [link](https://example.org/a) [bad](javascript:alert(1))\n- one\n  - deep\n- two\n\n"
                "| a | b |\n|---|---|\n| `1` | 2 |\n\n```cpp\nint a = 1 * 2 * 3;\n")
        self.do(f"""window.probe = document.createElement('div'); probe.className = 'text'; document.getElementById('log').append(probe);
            const text = {json.dumps(text)}; for (let i = 0; i <= text.length; i++) showText(probe, text.slice(0, i));
            window.once = document.createElement('div'); showText(once, text);
            document.addEventListener('copy', () => {{ window.copied = document.activeElement.value }})""")
        count = "Object.fromEntries(['h3','strong','em','a','li','ul ul','td','th','pre'].map(n => [n, probe.querySelectorAll(n).length]))"
        self.assertEqual(self.browser.evaluate(count),
                         {"h3": 1, "strong": 1, "em": 1, "a": 1, "li": 3, "ul ul": 1, "td": 2, "th": 2, "pre": 1})
        self.assertEqual(self.browser.evaluate("probe.innerHTML"), self.browser.evaluate("once.innerHTML"))  # Streamed as at once.
        self.assertEqual(self.browser.evaluate("probe.querySelector('.code span').textContent"), "cpp")
        self.picture("markdown")
        self.do("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
        self.assertIn("int a = 1 * 2 * 3;", self.browser.evaluate_as_person("probe.querySelector('.copy-code').click(); window.copied"))

    def test_text_never_becomes_markup(self):
        self.do("""(() => { const node = document.createElement('div');
            showText(node, 'a <img src=x onerror=alert(1)> `<b>`\\n\\n```html\\n<i>x</i>\\n```\\nend'); window.probe = node; })()""")
        self.assertEqual(self.browser.evaluate("probe.querySelectorAll('img, b, i').length"), 0)
        self.assertEqual(self.browser.evaluate("probe.querySelector('pre').textContent"), "<i>x</i>")

    def test_text_that_grows_is_drawn_as_text_that_is_there(self):
        """Letter by letter, with finished blocks kept: the same nodes as at once."""
        self.do(f"""window.differs = []; for (const text of {json.dumps(SAMPLES)}) {{
            const grown = document.createElement('div'); let so_far = '';
            for (const piece of text) {{
                showText(grown, so_far += piece);
                const once = document.createElement('div'); showText(once, so_far);
                if (grown.innerHTML !== once.innerHTML) {{ differs.push([so_far, grown.innerHTML, once.innerHTML]); break; }}
            }} }}""")
        self.assertEqual(json.loads(self.browser.evaluate("JSON.stringify(differs)")), [])

    def test_finished_blocks_are_not_read_again(self):
        self.do("""window.amount = 0; const plainLex = lex; lex = (text, links) => { amount += text.length; return plainLex(text, links); };
            window.probe = document.createElement('div'); let text = '';
            for (let i = 0; i < 300; i++) showText(probe, text += `Paragraph ${i} of many.\\n\\n`);""")
        self.assertEqual(self.browser.evaluate("probe.querySelectorAll('p').length"), 300)
        self.assertLess(self.browser.evaluate("amount"), 4 * 300 * 25)

    def test_code_is_coloured_and_stays_what_it_is(self):
        samples = {
            "cpp": '#include <a>\n// no "string"\nint main() { return f(0x1F, "a \\" // b", \'c\'); } /* two\nlines */ auto x = 1.5e3;',
            "python": 'def f(x):  # a "comment"\n    """doc\n    string"""\n    return \'it\' + str(1)',
            "js": "const a = `t ${b}\n`; // c\nasync () => { await run(2) }", "rust": "fn f<'a>(x: &'a str) -> char { 'x' }",
            "sql": "SELECT a FROM b WHERE c = 'it''s' -- d", "bash": 'for i in 1 2; do echo "$i#x" # c\ndone', "json": '{"a": [1, true, null]}',
            "html": '<!-- c --><a href="x">t</a>', "diff": "@@ -1 +1 @@\n-a\n+b\n c", "yaml": "a: true # c\nb: 'x'", "go": "func f() { return `x\ny` }",
            "tex": "\\frac{a}{b} % c", "brainfuck": "+[->+<]", "": "plain",
        }
        self.do(f"""window.kinds = {{}}; window.wrong = []; for (const [language, text] of Object.entries({json.dumps(samples)})) {{
            const node = document.createElement('code'); highlight(node, language, text);
            if (node.textContent !== text) wrong.push(language);
            kinds[language] = [...node.children].map(child => [child.className, child.textContent]);
        }}""")
        self.assertEqual(self.browser.evaluate("wrong.join()"), "")
        kinds = json.loads(self.browser.evaluate("JSON.stringify(kinds)"))

        def of(language, wanted):
            return [text for kind, text in kinds[language] if kind == f"hljs-{wanted}"]
        self.assertEqual(of("cpp", "comment"), ['// no "string"', "/* two\nlines */"])
        self.assertIn('"a \\" // b"', of("cpp", "string"))
        self.assertEqual(of("cpp", "number"), ["0x1F", "1.5e3"])
        self.assertIn("return", of("cpp", "keyword"))
        self.assertEqual(of("python", "keyword"), ["return"])
        self.assertEqual(of("bash", "comment"), ["# c"])
        self.assertEqual((of("diff", "deletion"), of("diff", "addition")), (["-a"], ["+b"]))
        for language in set(samples) - {"brainfuck", ""}:
            self.assertTrue(kinds[language], language)
        self.assertEqual((kinds["brainfuck"], kinds[""]), ([], []))

    def test_code_keeps_its_tabs(self):
        self.do("window.probe = document.createElement('div'); showText(probe, '```make\\nall:\\n\\techo $@\\n```\\n\\n- one\\n\\t- deep\\n')")
        self.assertEqual(self.browser.evaluate("probe.querySelector('pre').textContent"), "all:\n\techo $@")
        self.assertEqual(self.browser.evaluate("probe.querySelectorAll('ul ul li').length"), 1)

    def test_code_that_has_not_ended_is_code(self):
        for text, code in (("```python\ndef f():\n    return 1", "def f():\n    return 1"), ("|a|\n|-|\n|1|\n\n~~~\nx\n  y", "x\n  y"), ("- a\n\n  ```sh\n  ls -", "ls -"),
                           ("> ```\n> a", "a"), ("```js", ""), ("```\nx\n``", "x\n``"), ("```\nx\n```", "x"), ("````\n```\nx\n```", "```\nx\n```")):
            self.do(f"window.probe = document.createElement('div'); showText(probe, {json.dumps(text)})")
            self.assertEqual(self.browser.evaluate("[...probe.querySelectorAll('pre')].map(each => each.textContent).join('|')"), code, text)
            self.assertEqual(self.browser.evaluate("probe.querySelectorAll('.code').length"), 1, text)

    def test_markdown_that_people_know(self):
        for text, selector, count in (
                ("[a]: https://example.org/x\n\nsee [a] and [b][a]", "a[href='https://example.org/x']", 2), ("see [a]\n\n[a]: https://example.org/x", "a", 1),
                ("[^1]: note", "a", 0), ("<https://example.org>", "a", 1), ("![picture](https://example.org/x.png)", "a", 1), ("![picture](https://example.org/x.png)", "img", 0),
                ("one<br>two", "br", 1), ("one\ntwo", "br", 1), ("H<sub>2</sub>O and <sub>x", "sub", 2), ("<kbd>Ctrl</kbd>", "kbd", 1), ("a &amp; b &lt;i&gt;", "i", 0),
                ("<details><summary>x</summary>y</details>", "details", 0), ("Head\n====", "h3", 1), ("- [ ] a\n- [x] b", "li.task", 2), ("3. x\n4. y", "ol[start='3'] > li", 2),
                ("    code", ".code pre", 1), ("> a\n> > b", "blockquote blockquote", 1), ("|a|b|\n|:-:|-:|\n|1\\|2|3|", "td.center", 1), ("a\\*b\\*", "em", 0),
                ("***both***", "em strong, strong em", 1), ("snake_case_name", "em", 0), ("~~no~~", "del", 1),
                ("**标题：**内容", "strong", 1), ("**“引用”**文字", "strong", 1), ("这是**重点**。", "strong", 1), ("**a** and **b.**c", "strong", 2)):
            self.do(f"window.probe = document.createElement('div'); showText(probe, {json.dumps(text)})")
            self.assertEqual(self.browser.evaluate(f"probe.querySelectorAll({json.dumps(selector)}).length"), count, (text, self.browser.evaluate("probe.innerHTML")))
        self.do("window.probe = document.createElement('div'); showText(probe, 'a &amp; b &lt;i&gt; &copy; &#x41; x < y && z &unknown; <div class=\"x\">')")
        self.assertEqual(self.browser.evaluate("probe.textContent"), "a & b <i> \u00a9 A x < y && z &unknown; <div class=\"x\">")

    def test_text_of_the_right_to_left(self):
        text = "مرحبا بالعالم\n\nplain\n\n- مرحبا\n\n```\nx = 1\n```\n\n$a + b$ مرحبا"
        self.do(f"""window.probe = document.createElement('div'); probe.className = 'text'; document.getElementById('log').append(probe);
            showText(probe, {json.dumps(text)})""")
        sides = "[...probe.querySelectorAll('p, li, .code')].map(node => getComputedStyle(node).direction).join()"
        self.assertEqual(self.browser.evaluate(sides), "rtl,ltr,rtl,ltr,rtl")
        self.assertEqual(self.browser.evaluate("getComputedStyle(probe.querySelector('.katex')).direction"), "ltr")

    def test_paragraphs_of_an_item_stay_apart(self):
        self.do("window.probe = document.createElement('div'); showText(probe, '1. First.\\n\\n   More **of** it.\\n\\n   - deep\\n2. Second.\\n\\n- tight')")
        self.assertEqual(self.browser.evaluate("[...probe.querySelectorAll('li')].map(each => [...each.childNodes].map(node => node.localName ?? 'text').join('+')).join()"), "p+p+ul,text,text,text")
        self.assertEqual(self.browser.evaluate("probe.querySelector('li p').textContent"), "First.")

    def test_no_word_of_a_table_is_lost(self):
        """Bars in formulas and code are no borders where a row would have too many cells."""
        for row, cells in (("| $P(A|B)$ | $a$ |", "$P(A|B)$;$a$"), ("| $|x|$ | `a || b` |", "$|x|$;a || b"), ("| x | $ |y| $ | z |", "x;$ |y| $ | z"), ("| $5 | 6$ |", "$5;6$"), ("a | b | c", "a;b | c"),
                           ("| \\(|x|\\) | a\\|b |", "$|x|$;a|b"), ("|$5|$10|", "$5;$10"), ("| `a|b` |", "`a;b`")):
            text = f"| a | b |\n|---|---|\n| 1 | 2 |\n{row}\n\nend"
            for growing in (False, True):
                self.do(f"""window.probe = document.createElement('div'); window.sample = {json.dumps(text)};
                    for (let i = {'1' if growing else 'sample.length'}; i <= sample.length; i++) showText(probe, sample.slice(0, i))""")
                drawn = "[...[...probe.querySelectorAll('tr')].at(-1).cells].map(cell => cell.querySelector('annotation') ? `$${cell.querySelector('annotation').textContent}$` : cell.textContent).join(';')"
                self.assertEqual(self.browser.evaluate(drawn), cells, row)
                self.assertEqual(self.browser.evaluate("probe.querySelector('p').textContent"), "end")

    def test_lists_tables_and_quotations_of_the_right_to_left(self):
        """Their marks, columns and bars stand at the right, where such lines begin; one line of another direction changes nothing."""
        text = "- مرحبا\n- plain\n\n| مدينة | عدد |\n|---|---|\n| باريس | 2 |\n\n> مرحبا\n\n1. plain\n2. مرحبا\n"
        for growing in (False, True):
            self.do(f"""window.probe = document.createElement('div'); probe.className = 'text'; document.getElementById('log').append(probe); window.sample = {json.dumps(text)};
                for (let i = {'1' if growing else 'sample.length'}; i <= sample.length; i++) showText(probe, sample.slice(0, i))""")
            sides = "[...probe.querySelectorAll('ul, table, blockquote, ol')].map(node => getComputedStyle(node).direction).join()"
            self.assertEqual(self.browser.evaluate(sides), "rtl,rtl,rtl,ltr")
            self.assertTrue(self.browser.evaluate("(([first, last]) => first.getBoundingClientRect().left > last.getBoundingClientRect().left)(probe.querySelectorAll('th'))"))
            edge = "Math.abs(probe.querySelector('table').getBoundingClientRect().right - probe.getBoundingClientRect().right) < 2"
            self.assertTrue(self.browser.evaluate(edge))
            # Words stand beside their mark, whatever their direction.
            words = """[...probe.querySelectorAll('li')].map(node => { const range = document.createRange(); range.selectNodeContents(node);
                const a = range.getBoundingClientRect(), b = node.getBoundingClientRect(); return b.right - a.right < a.left - b.left ? 'right' : 'left'; }).join()"""
            self.assertEqual(self.browser.evaluate(words), "right,right,left,left")

    def test_hostile_text_runs_nothing_and_leads_nowhere(self):
        self.do("""window.alert = () => { window.ran = true }; window.ran = false;
            window.probe = document.createElement('div'); probe.className = 'text'; document.getElementById('log').append(probe)""")
        allowed = "b,br,del,em,i,ins,kbd,mark,s,small,strong,sub,sup,u,p,div,span,pre,code,button,a,ul,ol,li,h3,h4,h5,h6,hr,blockquote,table,thead,tbody,tr,td,th"
        for text in HOSTILE:
            for shown in (text, f"words {text} words", f"- {text}", f"> {text}", f"| {text} |\n|---|\n| {text} |", f"**{text}**", f"[{text}]({text})", f"${text}$", f"$$\n{text}\n$$",
                          f"```html\n{text}\n```", f"```{text}\nx\n```"):
                self.do(f"probe.replaceChildren(); Object.assign(probe, {{ source: undefined, text: undefined, offsets: undefined }}); showText(probe, {json.dumps(shown)})")
                strange = self.browser.evaluate(f"""JSON.stringify([...probe.querySelectorAll('*')].filter(node => !node.closest('.katex, svg.icon[aria-hidden]') && !{json.dumps(allowed.split(','))}.includes(node.localName)
                    || node.closest('.katex') && ['a', 'img', 'script', 'iframe', 'form'].includes(node.localName)
                    || [...node.attributes].some(each => /^on|^srcdoc$|^formaction$/.test(each.name))).map(node => node.outerHTML))""")
                self.assertEqual(strange, "[]", shown)
                links = json.loads(self.browser.evaluate("JSON.stringify([...probe.querySelectorAll('a')].map(a => [a.protocol, a.target, a.rel]))"))
                for protocol, target, rel in links:
                    self.assertIn(protocol, ("http:", "https:", "mailto:"), shown)
                    self.assertEqual((target, rel), ("_blank", "noopener noreferrer"), shown)
        self.assertFalse(self.browser.evaluate("window.ran"))
        self.assertEqual([each for each in self.browser.complaints() if "Content Security" in json.dumps(each) or "Trusted" in json.dumps(each)], [])

    def test_monstrous_text_does_not_hang_the_page(self):
        for name, text in MONSTROUS.items():
            begin = time.monotonic()
            self.do(f"window.probe = document.createElement('div'); showText(probe, {text})")
            self.assertGreater(self.browser.evaluate("probe.textContent.length"), 100, name)
            self.assertLess(time.monotonic() - begin, 20, name)

    def test_formulas(self):
        self.do("window.probe = document.createElement('div'); probe.className = 'text'; document.getElementById('log').append(probe)")

        def count(text, selector):
            self.do(f"window.probe.replaceChildren(); Object.assign(probe, {{ source: undefined, text: undefined, offsets: undefined }}); showText(probe, {json.dumps(text)})")
            return self.browser.evaluate(f"probe.querySelectorAll({json.dumps(selector)}).length")
        for text in (r"$x^2$", r"\(x^2\)", r"$$x$$", "$$\nx\n$$", "\\[\nx\n\\]", r"\[ x \] and more", "words\n$$\nx\n$$\nmore", "- a\n\n  $$\n  x\n  $$\n", "> $$\n> x\n> $$",
                     "\\begin{align}\na &= b\\\\\nc &= d\n\\end{align}", "\\begin{cases}\na\\\\\nb\n\\end{cases}", "\\begin{pmatrix}a\\end{pmatrix}", r"**bold $x$**", r"| $x$ |" + "\n|---|\n| y |", "$`x`$", r"$\ce{2 H2 + O2 -> 2 H2O}$", r"$\vec{v}\label{a}$",
                     r"$a = \$5$", "$$a\nb$$", "1. do\n   $$x$$\n2. y"):
            self.assertEqual(count(text, ".tex .katex"), 1, (text, self.browser.evaluate("probe.innerHTML")[:600]))
        for text in ("costs $5 or $10 and", "US$5 and CA$6", "`$x$`", "```\n$x$\n```", r"\$x\$", "$ x $", "between $5-$10", "$$", r"\\(x\\)", "a $b", "x$y$z"):
            self.assertEqual(count(text, ".tex"), 0, text)
        # A formula that cannot be drawn is shown as it was written, with the reason.
        for text in (r"\unknowncommand{x}", r"\frac{a}", "x^", "{", "}", r"\left( x", r"\begin{x}", r"\begin{matrix}a", "a_b_c", "{" * 100, r"\constructor", r"\href{https://a.example}{x}",
                     r"\includegraphics{https://a.example/x.png}", r"\def\a{\a\a}\a"):
            self.assertGreater(count(f"${text}$", ".tex > code[title]") + count(f"${text}$", ".katex [style*=color]"), 0, text)
        self.do(f"showText(probe, {json.dumps(FORMULAS)})")
        self.assertEqual(self.browser.evaluate("['.katex', 'code', '.tex.shown'].map(name => probe.querySelectorAll(name).length).join()"), "7,1,4")
        self.assertIn("costs $5 or $10 and", self.browser.evaluate("probe.textContent"))
        self.assertEqual(self.browser.evaluate("probe.querySelectorAll('.katex math annotation').length"), 7)  # For a screen reader.
        self.picture("formulas")

    def test_formulas_have_the_right_size(self):
        """By their drawing: roots, fractions, matrices, integrals, sums and brackets, with the fonts that the server brings, whatever is installed."""
        self.do("""window.probe = document.createElement('div'); probe.className = 'text'; probe.style.fontSize = '16px'; document.getElementById('log').append(probe);
            window.box = (tex, selector, shown) => { probe.replaceChildren(formula('div', tex, shown)); drawFormula(probe.firstChild);
                const found = (selector ? probe.querySelector(selector) : probe.querySelector('.base')).getBoundingClientRect(); return [found.width, found.height]; };
            box(String.raw`\\sum\\mathbf{a}\\mathbb{R}\\mathcal{L}x\\Bigg(\\bigg(\\big(\\mathrm{d}`, '', true); document.fonts.ready.then(() => { window.loaded = true })""")
        self.wait("window.loaded && document.fonts.status === 'loaded'")

        def box(tex, selector="", shown=True):
            return json.loads(self.browser.evaluate(f"JSON.stringify(box({json.dumps(tex)}, {json.dumps(selector)}, {json.dumps(shown)}))"))
        # Each font in use was loaded from here.
        used = json.loads(self.browser.evaluate("JSON.stringify([...document.fonts].filter(font => font.status === 'loaded').map(font => font.family.replaceAll('\"', '')))"))
        self.assertTrue({"KaTeX_Main", "KaTeX_Math", "KaTeX_Size1", "KaTeX_Size2", "KaTeX_AMS", "KaTeX_Caligraphic"} <= set(used), used)
        if not page_testing.FIREFOX:  # It does not tell of what its cache has.
            self.assertTrue([url for url in self.browser.requests() if url.startswith(self.server.url + "/page/") and "KaTeX_Main-Regular.woff2" in url])
        em = 1.21 * 16  # The size of KaTeX's text.
        for tex, wanted in (("x", 0.572), (r"\sqrt{x}", 1.405), (r"\sqrt[3]{x}", 1.378), (r"\frac{a}{b}", 0.768), (r"\int", 1.0), (r"\sum", 1.444),
                            (r"\begin{pmatrix}a&b\\c&d\end{pmatrix}", 3.521), (r"\begin{cases}a\\b\end{cases}", 1.455)):
            self.assertAlmostEqual(box(tex)[0] / em, wanted, delta=0.02, msg=tex)
        # A root's sign is wider than nothing, its line is as wide as what stands below it, and it grows.
        self.assertGreater(box(r"\sqrt{x}")[0] - box("x")[0], 0.7 * em)
        self.assertGreater(box(r"\sqrt{b^2-4ac}", ".sqrt .hide-tail")[0], box("b^2-4ac")[0])
        self.assertGreater(box(r"\sqrt{\frac{a}{b}}", ".sqrt svg")[1], 2 * em)
        # Brackets grow with what they hold, sums and integrals in a formula of its own line.
        self.assertAlmostEqual(box(r"\left(\frac{a}{b}\right)", ".mopen")[0] / em, 0.597, delta=0.02)
        self.assertAlmostEqual(box("(a)", ".mopen")[0] / em, 0.389, delta=0.02)
        self.assertGreater(box(r"\begin{pmatrix}a\\b\\c\\d\end{pmatrix}", ".mopen .vlist")[1], 2.5 * em)
        self.assertGreater(box(r"\begin{cases}a\\b\\c\\d\end{cases}", ".mopen .vlist")[1], 2.5 * em)
        self.assertGreater(box(r"\int_0^1", ".op-symbol")[1], 1.3 * box(r"\int_0^1", ".op-symbol", False)[1])
        self.assertGreater(box(r"\sum_i", ".op-symbol")[0], 1.2 * box(r"\sum_i", ".op-symbol", False)[0])
        # No size covers the page.
        self.assertLess(box(r"\rule{999em}{999em}")[1], 25 * em)


FORMULAS = r"""# Formulas
Inline $e^{i\pi} + 1 = 0$ and \(a_1, \dots, a_n\), but it costs $5 or $10 and `$x$` is code.

$$
\int_0^\infty e^{-x^2}\,dx = \frac{\sqrt{\pi}}{2}
$$

\[ \operatorname{softmax}(z)_i = \frac{e^{z_i}}{\sum_{j=1}^{K} e^{z_j}} \quad\text{for } i = 1, \dots, K \]

\begin{align}
f(x) &= \left(\frac{x}{2}\right)^2 + \lim_{h \to 0} \frac{g(x + h) - g(x)}{h} \\
     &\le \|\mathbf{A}\| \cdot \hat{x}
\end{align}

- in an item: $$A = \begin{pmatrix} 1 & 0 \\ 0 & \ddots \end{pmatrix}$$
- and $|x| = \begin{cases} x & x \ge 0 \\ -x & \text{otherwise} \end{cases}$
"""

SAMPLES = [
    "# Head\n\ntext **bold** `code` *thin*\n- one\n  - deep\n\n- loose\n1. x\n\n2. y\n\n   below\n\nend",
    "a | b\n---|---\n1 | 2\n\nwords\na | b\n---|---x\n\nmore\n---\n--- x\n\n***\nlast",
    "```py\ndef f(): # c\n    return '''a\nb'''\n```\n~~~\nx\n~~~\n> quote\n> - item\n>\n> end\n\n$$\nx^2\n$$\nafter $y_1$ it",
    "one\n\n[a]: https://a.example/x\n\nsee [a], ![p](https://a.example/p.png) <b>bold</b> <i>\n\n\tcode\n\n```\n\ttab\n```\nUS$5, $x$ and $$\ny\n$$\n\n<div>\nx\n</div>\nHead\n===\n[x]: <https://b.example>\n",
    "\\[ a\n+ b \\]\n\n\\begin{align}\na &= b\n\\end{align}\n\n1. do\n   ```sh\n   ls\n   ```\n2. then\n- [x] done\n***both*** ~~no~~ https://a.example/b. \\*",
]

HOSTILE = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<svg onload=alert(1)>", "<svg><script>alert(1)</script></svg>", "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<a href=javascript:alert(1)>x</a>", "[x](javascript:alert(1))", "[x](JaVaScRiPt:alert(1))", "[x](java\tscript:alert(1))", "[x](&#106;avascript:alert(1))", "[x](javascript&colon;alert(1))",
    "[x](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)", "[x](vbscript:msgbox(1))", "[x]( javascript:alert(1))", "[x](\u0001javascript:alert(1))", "<javascript:alert(1)>", "![x](javascript:alert(1))",
    "![x](\"onerror=\"alert(1))", "[x]: javascript:alert(1)\n\n[x]", "<b onclick=alert(1)>x</b>", "<b/onclick=alert(1)>x", "<sub onmouseover=alert(1)>", "<math><mtext></math><img src onerror=alert(1)>",
    "<style>@import 'https://a.example'</style>", "<link rel=stylesheet href=https://a.example>", "<meta http-equiv=refresh content='0;url=https://a.example'>", "<base href=https://a.example>",
    "<form action=https://a.example><button>x</button></form>", "<input autofocus onfocus=alert(1)>", "<details open ontoggle=alert(1)>", "<video><source onerror=alert(1)>", "<!--<img src=x onerror=alert(1)>-->",
    "<![CDATA[<script>alert(1)</script>]]>", "<?php alert(1) ?>", "&lt;script&gt;alert(1)&lt;/script&gt;", "<scr<script>ipt>alert(1)</script>", "\\href{javascript:alert(1)}{x}", "\\url{javascript:alert(1)}",
    "\\htmlData{x=y}{z}", "\\htmlStyle{position:fixed}{x}", "\\includegraphics{https://a.example/x.png}", "\\class{x}{y}", "\\text{<img src=x onerror=alert(1)>}", "[a](https://a.example\"onclick=\"alert(1))",
    "<span class=\"hljs-x\" onclick=alert(1)>", "</code></pre><script>alert(1)</script>", "[x](//a.example/y)", "[x](/v1/models)", "[x](file:///etc/passwd)", "[x](blob:https://a.example/1)",
]
# JavaScript that makes a text.
MONSTROUS = {
    "quotes": "'> '.repeat(5000) + 'x'.repeat(200)", "lists": "Array.from({ length: 600 }, (_, i) => ' '.repeat(2 * i) + '- item').join('\\n')", "stars": "'*'.repeat(20000) + 'a'",
    "brackets": "'['.repeat(20000) + 'a'", "pairs": "'[a]('.repeat(5000)", "ticks": "Array.from({ length: 300 }, (_, i) => '`'.repeat(i)).join('a')", "dollars": "'$x '.repeat(20000)", "braces": "'$$' + '{'.repeat(3000) + '$$' + 'x'.repeat(200)",
    "under": "'_a_'.repeat(20000)", "bold": "'**a '.repeat(10000)", "tags": "'<b>'.repeat(5000) + 'x'.repeat(200)", "fractions": "'$' + String.raw`\\frac{1}{`.repeat(90) + '}'.repeat(90) + '$' + 'x'.repeat(200)",
    "table": "'|a'.repeat(2000) + '|\\n' + '|-'.repeat(2000) + '|\\n' + '|b'.repeat(2000) + '|'", "macro": "String.raw`$\\def\\a{\\a\\a}\\a$` + 'x'.repeat(200)", "begins": "'\\\\begin{align}\\n'.repeat(3000)",
    "one line": "'word '.repeat(200000)", "code": "'```js\\n' + '(((((\"'.repeat(9000)",
}


if __name__ == "__main__":
    page_testing.main()
