"""How the chat page draws text: Markdown, code, formulas, as it grows and at once."""

import json

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
        self.do("""window.amount = 0; const plain = inline; inline = (node, text) => { amount += text.length; return plain(node, text); };
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
            return [text for kind, text in kinds[language] if kind == wanted]
        self.assertEqual(of("cpp", "comment"), ['// no "string"', "/* two\nlines */"])
        self.assertEqual(of("cpp", "string"), ["#include", '"a \\" // b"', "'c'"])
        self.assertEqual(of("cpp", "keyword"), ["int", "return", "auto"])
        self.assertEqual(of("cpp", "called"), ["main", "f"])
        self.assertEqual(of("cpp", "numeral"), ["0x1F", "1.5e3"])
        self.assertEqual(of("python", "string"), ['"""doc\n    string"""', "'it'"])
        self.assertEqual(of("rust", "string"), ["'x'"])
        self.assertEqual([kind for kind, _ in kinds["diff"]], ["keyword", "taken", "added"])
        self.assertEqual(of("bash", "comment"), ["# c"])
        self.assertEqual(of("html", "keyword"), ["<a", ">", "</a", ">"])
        self.assertEqual((kinds["brainfuck"], kinds[""]), ([], []))

    def test_formulas(self):
        self.do("""window.probe = document.createElement('div'); probe.className = 'text'; document.getElementById('log').append(probe);
            window.math = (text, display) => formula(text, display).outerHTML.replace(/ xmlns="[^"]*"/, '')""")

        def drawn(text, display=False):
            return self.browser.evaluate(f"math({json.dumps(text)}, {json.dumps(display)})")
        self.assertEqual(drawn("x^2"), "<math><mrow><msup><mi>x</mi><mn>2</mn></msup></mrow></math>")
        self.assertEqual(drawn(r"\frac12"), "<math><mrow><mfrac><mn>1</mn><mn>2</mn></mfrac></mrow></math>")
        self.assertEqual(drawn(r"\sum_{i=1}^n", True), '<math display="block"><mrow><munderover><mo movablelimits="false" largeop="true">∑</mo>'
                         "<mrow><mi>i</mi><mo>=</mo><mn>1</mn></mrow><mi>n</mi></munderover></mrow></math>")
        for text, part in ((r"\sqrt[3]{x}", "<mroot>"), (r"\mathbb{R}", "ℝ"), (r"\left(\frac{a}{b}\right]", 'fence="true"'), (r"\text{if } x", "<mtext>if"),
                           (r"\begin{pmatrix}a & b\\ c & d\end{pmatrix}", "<mtable"), (r"\vec{v}", 'accent="true"'), (r"f'(x)", "′"),
                           (r"\lim_{x\to 0}", "<munder>"), (r"\begin{cases}1 & x>0\\0\end{cases}", 'class="left"'),
                           (r"\mathrm{softmax}(x)_i", "softmax</mi>"), (r"a\,b\ c", "mspace"), (r"\not\in", "∈\u0338"), (r"\mathbf{W}_q", "𝐖"),
                           (r"\underbrace{a+b}_{n}", "⏟"), (r"\binom nk", 'linethickness="0"'), (r"\operatorname{arg}_x", "arg"), (r"\infty", "∞"), (r"\alpha\Omega", "α")):
            self.assertIn(part, drawn(text), text)
            self.assertTrue(drawn(text).startswith("<math"), text)
        # What cannot be drawn is shown as it was written, with the reason.
        for text in (r"\unknowncommand{x}", r"\frac{a}", "x^", "{", "}", r"\left( x", r"\begin{x}", r"\begin{matrix}a", "a_b_c", "{" * 100, r"\constructor", r"\begin{toString}\end{toString}"):
            self.assertTrue(drawn(text).startswith("<code"), text)
            self.assertEqual(self.browser.evaluate(f"formula({json.dumps(text)}, false).textContent"), text)
        self.do(f"showText(probe, {json.dumps(FORMULAS)})")
        count = "['math', 'code', '.formula'].map(name => probe.querySelectorAll(name).length).join()"
        self.assertEqual(self.browser.evaluate(count), "7,1,4")
        self.assertIn("costs $5 or $10 and", self.browser.evaluate("probe.textContent"))
        self.picture("formulas")
        self.assertGreater(self.browser.evaluate("probe.querySelector('mfrac').getBoundingClientRect().height"), 20)  # It is drawn, not written.


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
    "\\[ a\n+ b \\]\n\n\\begin{align}\na &= b\n\\end{align}\n\n1. do\n   ```sh\n   ls\n   ```\n2. then\n- [x] done\n***both*** ~~no~~ https://a.example/b. \\*",
]


if __name__ == "__main__":
    page_testing.main()
