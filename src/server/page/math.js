// TeX of formulas into MathML, which the browser draws. A command that is not known makes the whole formula stay as it was written.
"use strict";

const kSpace = "http://www.w3.org/1998/Math/MathML";
function mathNode(tag, attributes, ...children) {
  const node = document.createElementNS(kSpace, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
const kUpright = { stretchy: false, lspace: "0", rspace: "0" };
const row = nodes => nodes.length === 1 ? nodes[0] : mathNode("mrow", {}, ...nodes);
const operator = (text, attributes = {}) => mathNode("mo", attributes, text);

const pairs = text => new Map(text.trim().split(/\s+/).map(pair => [pair.slice(0, -[...pair].at(-1).length), [...pair].at(-1)]));
const kLetters = pairs(`alphaα betaβ gammaγ deltaδ epsilonϵ varepsilonε zetaζ etaη thetaθ varthetaϑ iotaι kappaκ lambdaλ muμ nuν xiξ omicronο piπ varpiϖ rhoρ
  varrhoϱ sigmaσ varsigmaς tauτ upsilonυ phiϕ varphiφ chiχ psiψ omegaω GammaΓ DeltaΔ ThetaΘ LambdaΛ XiΞ PiΠ SigmaΣ UpsilonΥ PhiΦ PsiΨ OmegaΩ
  alephℵ ellℓ hbarℏ imathı jmathȷ wp℘ Reℜ Imℑ partial∂ nabla∇ emptyset∅ varnothing∅ infty∞ angle∠ top⊤ bot⊥ degree° prime′ square□ blacksquare■
  Box□ qed∎ dots… ldots… cdots⋯ vdots⋮ ddots⋱ dotsc… dotsb⋯ checkmark✓ S§ P¶ pounds£ dagger† ddagger‡ clubsuit♣ heartsuit♥ spadesuit♠ diamondsuit♢
  flat♭ sharp♯ natural♮ complement∁ mho℧ triangle△`);
const kOperators = pairs(`times× div÷ cdot⋅ pm± mp∓ ast∗ star⋆ circ∘ bullet∙ oplus⊕ ominus⊖ otimes⊗ oslash⊘ odot⊙ cap∩ cup∪ uplus⊎ sqcap⊓ sqcup⊔ vee∨ lor∨ wedge∧
  land∧ setminus∖ neg¬ lnot¬ amalg⨿ wr≀ le≤ leq≤ leqslant⩽ ge≥ geq≥ geqslant⩾ ne≠ neq≠ equiv≡ approx≈ sim∼ simeq≃ cong≅ propto∝ ll≪ gg≫ prec≺ succ≻ preceq⪯ succeq⪰
  subset⊂ supset⊃ subseteq⊆ supseteq⊇ subsetneq⊊ supsetneq⊋ sqsubseteq⊑ in∈ ni∋ notin∉ mid∣ nmid∤ parallel∥ nparallel∦ perp⊥ vdash⊢ dashv⊣ models⊨ vDash⊨ asymp≍ doteq≐
  triangleq≜ coloneqq≔ lesssim≲ gtrsim≳ to→ rightarrow→ leftarrow← gets← leftrightarrow↔ Rightarrow⇒ Leftarrow⇐ Leftrightarrow⇔ implies⟹ impliedby⟸ iff⟺
  longrightarrow⟶ longleftarrow⟵ Longrightarrow⟹ Longleftrightarrow⟺ mapsto↦ longmapsto⟼ uparrow↑ downarrow↓ updownarrow↕ Uparrow⇑ Downarrow⇓ nearrow↗ searrow↘
  swarrow↙ nwarrow↖ hookrightarrow↪ hookleftarrow↩ rightharpoonup⇀ rightleftharpoons⇌ rightsquigarrow⇝ twoheadrightarrow↠ leadsto⇝ forall∀ exists∃ nexists∄ therefore∴
  because∵ lt< gt> colon: ltimes⋉ rtimes⋊ bowtie⋈ lfloor⌊ rfloor⌋ lceil⌈ rceil⌉ langle⟨ rangle⟩ lbrace{ rbrace} lbrack[ rbrack] vert| lvert| rvert| Vert‖ lVert‖
  rVert‖ backslash\\ surd√ lgroup⟮ rgroup⟯`);
const kBig = pairs("sum∑ prod∏ coprod∐ bigcup⋃ bigcap⋂ bigsqcup⨆ bigvee⋁ bigwedge⋀ bigoplus⨁ bigotimes⨂ bigodot⨀ biguplus⨄");
const kIntegrals = pairs("int∫ iint∬ iiint∭ oint∮ oiint∯");
const kNames = new Set("sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan log ln lg exp deg dim ker hom arg".split(" "));
const kNamesWithLimits = new Map(Object.entries({ lim: "lim", max: "max", min: "min", sup: "sup", inf: "inf", det: "det", gcd: "gcd", Pr: "Pr", limsup: "lim sup", liminf: "lim inf", argmax: "arg max", argmin: "arg min" }));
const kAccents = pairs("hat^ widehat^ bar¯ overline¯ tilde~ widetilde~ vec→ overrightarrow→ overleftarrow← dot˙ ddot¨ check\u02c7 breve˘ acute´ grave` mathring˚ overbrace⏞");
const kUnder = pairs("underline_ underbrace⏟");
const kStretched = new Set(["widehat", "overline", "widetilde", "overrightarrow", "overleftarrow", "overbrace", "underline", "underbrace"]);
const kSpaces = { ",": 0.17, ":": 0.22, ">": 0.22, ";": 0.28, "!": -0.17, " ": 0.25, quad: 1, qquad: 2, thinspace: 0.17, enspace: 0.5 };
const kStyles = { mathbf: "bf", boldsymbol: "bf", bm: "bf", textbf: "bf", mathbb: "bb", mathcal: "cal", mathscr: "cal", mathfrak: "frak", mathsf: "sf", mathtt: "tt", mathrm: "rm", mathit: "it", mathnormal: "it" };
const kAlphabets = {  // Where A, a and 0 are; and the letters that stand elsewhere.
  bf: [0x1d400, 0x1d41a, 0x1d7ce, ""], bb: [0x1d538, 0x1d552, 0x1d7d8, "CℂHℍNℕPℙQℚRℝZℤ"], cal: [0x1d49c, 0x1d4b6, 0, "BℬEℰFℱHℋIℐLℒMℳRℛeℯgℊoℴ"],
  frak: [0x1d504, 0x1d51e, 0, "CℭHℌIℑRℜZℨ"], sf: [0x1d5a0, 0x1d5ba, 0x1d7e2, ""], tt: [0x1d670, 0x1d68a, 0x1d7f6, ""],
};
const kFences = { pmatrix: "()", bmatrix: "[]", Bmatrix: "{}", vmatrix: "||", Vmatrix: "‖‖", matrix: "", smallmatrix: "", cases: "{ ", rcases: " }", array: "", aligned: "", align: "", "align*": "", alignedat: "",
  split: "", gathered: "", gather: "", "gather*": "", equation: "", "equation*": "" };

function styled(text, style) {
  const table = kAlphabets[style];
  if (!table) return text;
  return [...text].map(letter => {
    const other = table[3].indexOf(letter);
    if (other >= 0) return table[3][other + 1];
    const code = letter.charCodeAt(0);
    if (/[A-Z]/.test(letter)) return String.fromCodePoint(table[0] + code - 65);
    if (/[a-z]/.test(letter)) return String.fromCodePoint(table[1] + code - 97);
    if (/[0-9]/.test(letter) && table[2]) return String.fromCodePoint(table[2] + code - 48);
    if (style === "bf" && /[α-ω]/.test(letter)) return String.fromCodePoint(0x1d6c2 + code - 0x3b1);
    if (style === "bf" && /[Α-Ω]/.test(letter)) return String.fromCodePoint(0x1d6a8 + code - 0x391);
    return letter;
  }).join("");
}

class Tex {
  constructor(text, display) {
    this.tokens = text.match(/\\[a-zA-Z]+\*?|\\[^]|[0-9]+(?:\.[0-9]+)?|%.*|\s+|[^]/gu) ?? [];
    this.at = 0;
    this.depth = 0;
    this.display = display;
    this.style = "";
  }

  peek() {
    while (/^(\s|%.)/u.test(this.tokens[this.at] ?? "")) this.at++;
    return this.tokens[this.at];
  }
  next() { const token = this.peek(); this.at++; return token; }
  fail(what) { throw new SyntaxError(what); }
  expect(token) { if (this.next() !== token) this.fail(`wanted ${token}`); }

  // The text in braces, as it stands.
  raw() {
    this.expect("{");
    let text = "";
    for (let open = 1; ; this.at++) {
      const token = this.tokens[this.at];
      if (token === undefined) this.fail("wanted }");
      open += token === "{" ? 1 : token === "}" ? -1 : 0;
      if (!open) { this.at++; return text; }
      text += token;
    }
  }

  // What a command takes: a group or one atom.
  argument() {
    if (this.peek() === undefined) this.fail("an argument is missing");
    if (this.peek() !== "{") {  // \frac12 takes a digit each.
      const token = this.tokens[this.at];
      if (/^[0-9]{2,}/.test(token)) this.tokens.splice(this.at, 1, token[0], token.slice(1));
      return this.atom();
    }
    return this.group();
  }
  group() {
    this.expect("{");
    const nodes = this.nodes(["}"]);
    this.expect("}");
    return row(nodes);
  }
  optional() {
    if (this.peek() !== "[") return null;
    this.at++;
    const nodes = this.nodes(["]"]);
    this.expect("]");
    return row(nodes);
  }

  nodes(stops) {
    if (++this.depth > 60) this.fail("nested too deep");
    const nodes = [];
    const style = this.style;
    for (let token = this.peek(); token !== undefined && !stops.includes(token); token = this.peek()) {
      if (["}", "&", "\\\\", "\\right", "\\end"].includes(token)) this.fail(`${token} has no beginning`);
      if (token === "\\displaystyle" || token === "\\textstyle") {
        this.at++;
        nodes.push(mathNode("mstyle", { displaystyle: token === "\\displaystyle" }, ...this.nodes(stops)));
        break;
      }
      if (/^\\(limits|nolimits|nonumber|notag|hline|label|phantom)$/.test(token)) {
        this.at++;
        if (token === "\\label") this.raw();
        if (token === "\\phantom") nodes.push(mathNode("mphantom", {}, this.argument()));
        continue;
      }
      nodes.push(this.scripted());
    }
    this.style = style;
    this.depth--;
    return nodes;
  }

  scripted() {
    const base = /^[\^_]$/.test(this.peek()) ? mathNode("mrow", {}) : this.atom();
    let limits = base.limits;
    let under = null;
    let over = null;
    for (;;) {
      const token = this.peek();
      if (token === "\\limits" || token === "\\nolimits") { this.at++; limits = token === "\\limits"; continue; }
      if (token === "'") {
        let primes = "";
        while (this.peek() === "'") { this.at++; primes += "′"; }
        over = over ? row([over, operator(primes)]) : operator(primes);
      } else if (token === "^") {
        this.at++;
        const script = this.argument();
        over = over ? row([over, script]) : script;
      } else if (token === "_") {
        if (under) this.fail("two indices");
        this.at++;
        under = this.argument();
      } else {
        break;
      }
    }
    if (!under && !over) return base;
    const kind = limits ? ["munder", "mover", "munderover"] : ["msub", "msup", "msubsup"];
    const node = mathNode(kind[under && over ? 2 : over ? 1 : 0], {}, base, ...[under, over].filter(Boolean));
    node.limits = base.limits && base.localName === "munder";
    return node;
  }

  atom() {
    const token = this.next();
    if (token === undefined) this.fail("the formula ends early");
    if (token === "{") { this.at--; return this.group(); }
    if (/^[0-9]/.test(token)) return mathNode("mn", {}, styled(token, this.style));
    if (/^\p{L}$/u.test(token)) return this.letter(token);
    if (token.startsWith("\\")) return this.command(token.slice(1));
    if (token === "-") return operator("−");
    if (token === "*") return operator("∗");
    if (token === "~") return mathNode("mspace", { width: "0.25em" });
    if (token === "|") return operator("|", kUpright);
    if (/^[()[\]]$/.test(token)) return operator(token, { stretchy: false });
    return operator(token);
  }
  letter(text) {
    const upright = this.style === "rm" || /^[Α-Ω]$/.test(text);
    return mathNode("mi", upright ? { mathvariant: "normal" } : {}, styled(text, this.style));
  }

  // What \left, \right and \big take.
  delimiter() {
    const token = this.next();
    if (token === undefined) this.fail("a delimiter is missing");
    if (token === ".") return "";
    if (token === "\\|") return "‖";
    if (token === "<" || token === ">") return token === "<" ? "⟨" : "⟩";
    if (!token.startsWith("\\")) return token;
    const name = token.slice(1);
    return /^[{}|]$/.test(name) ? name : kOperators.get(name) ?? this.fail(`${token} is no delimiter`);
  }

  command(name) {
    if (kLetters.has(name)) return this.letter(kLetters.get(name));
    if (kOperators.has(name)) return operator(kOperators.get(name), /^[lr]?(vert|Vert|angle|floor|ceil|brace|brack)$/.test(name) ? kUpright : {});
    if (kBig.has(name)) return Object.assign(operator(kBig.get(name), { movablelimits: !this.display, largeop: true }), { limits: true });
    if (kIntegrals.has(name)) return operator(kIntegrals.get(name), { largeop: true });
    if (kNames.has(name)) return mathNode("mi", {}, name);
    if (kNamesWithLimits.has(name)) return Object.assign(operator(kNamesWithLimits.get(name), { movablelimits: !this.display, form: "prefix" }), { limits: true });
    if (!name.trim()) name = " ";
    if (Object.hasOwn(kSpaces, name)) return mathNode("mspace", { width: `${kSpaces[name]}em` });
    if (/^[{}|%$#_&]$/.test(name)) return operator(name === "|" ? "‖" : name, kUpright);
    if (Object.hasOwn(kStyles, name)) return this.withStyle(kStyles[name]);
    if (/^(text|textrm|textit|texttt|textsf|mbox|hbox)$/.test(name)) return mathNode("mtext", {}, this.raw().replace(/^ | $/g, "\u00a0"));
    if (name === "operatorname" || name === "operatorname*") return Object.assign(mathNode("mi", { mathvariant: "normal" }, this.raw()), { limits: name.endsWith("*") });
    if (kAccents.has(name)) return this.accent("mover", kAccents.get(name), name);
    if (kUnder.has(name)) return this.accent("munder", kUnder.get(name), name);
    if (/^[dtc]?frac$/.test(name)) {
      const fraction = mathNode("mfrac", {}, this.argument(), this.argument());
      return name === "frac" ? fraction : mathNode("mstyle", { displaystyle: name !== "tfrac" }, fraction);
    }
    if (/^[dt]?binom$/.test(name)) return mathNode("mrow", {}, operator("("), mathNode("mfrac", { linethickness: "0" }, this.argument(), this.argument()), operator(")"));
    if (name === "sqrt") {
      const index = this.optional();
      return index ? mathNode("mroot", {}, this.argument(), index) : mathNode("msqrt", {}, this.argument());
    }
    if (name === "left") return this.fenced();
    if (/^([bB]igg?)[lrm]?$/.test(name)) {
      const size = `${{ big: 1.2, Big: 1.8, bigg: 2.4, Bigg: 3 }[name.replace(/[lrm]$/, "")]}em`;
      return operator(this.delimiter(), { minsize: size, maxsize: size, stretchy: true });
    }
    if (name === "begin") return this.environment(this.raw());
    if (name === "overset" || name === "stackrel") { const over = this.argument(); return mathNode("mover", {}, this.argument(), over); }
    if (name === "underset") { const under = this.argument(); return mathNode("munder", {}, this.argument(), under); }
    if (/^x(right|left)arrow$/.test(name)) {
      const under = this.optional();
      const arrow = operator(name === "xrightarrow" ? "→" : "←", { stretchy: true });
      return under ? mathNode("munderover", {}, arrow, under, this.argument()) : mathNode("mover", {}, arrow, this.argument());
    }
    if (name === "boxed") return mathNode("mrow", { class: "boxed" }, this.argument());
    if (name === "substack") return this.stack();
    if (name === "not") return operator(`${this.atom().textContent}\u0338`);
    if (name === "tag") return mathNode("mtext", {}, `\u2003(${this.raw()})`);
    if (name === "pmod") return mathNode("mrow", {}, mathNode("mspace", { width: "1em" }), operator("("), mathNode("mi", {}, "mod"), mathNode("mspace", { width: "0.3em" }), this.argument(), operator(")"));
    if (name === "bmod" || name === "mod") return operator("mod", { lspace: "0.3em", rspace: "0.3em" });
    if (/^math(op|rel|bin|ord|open|close|inner)$/.test(name)) return Object.assign(this.argument(), { limits: name === "mathop" });
    if (name === "textcolor" || name === "color") { this.raw(); return name === "color" ? mathNode("mrow", {}) : this.argument(); }
    return this.fail(`\\${name} is not known`);
  }

  withStyle(style) {
    const before = this.style;
    this.style = style;
    const word = style === "rm" && this.peek() === "{" && /^\{[a-zA-Z]{2,}\}$/.test(this.tokens.slice(this.at, this.at + 40).join("").split("}")[0] + "}");
    const node = word ? mathNode("mi", { mathvariant: "normal" }, this.raw()) : this.argument();
    this.style = before;
    return node;
  }
  accent(tag, mark, name) {
    const node = mathNode(tag, tag === "mover" ? { accent: true } : { accentunder: true }, this.argument(), operator(mark, { stretchy: kStretched.has(name) }));
    node.limits = name.endsWith("brace");
    return node;
  }
  fenced() {
    const open = this.delimiter();
    const parts = [];
    if (open) parts.push(operator(open, { stretchy: true, fence: true, form: "prefix" }));
    for (;;) {
      parts.push(...this.nodes(["\\right", "\\middle"]));
      const token = this.next();
      if (token === undefined) this.fail("\\left without \\right");
      const text = this.delimiter();
      if (text) parts.push(operator(text, token === "\\right" ? { stretchy: true, fence: true, form: "postfix" } : { stretchy: true }));
      if (token === "\\right") return mathNode("mrow", {}, ...parts);
    }
  }

  rows(end) {
    const rows = [[]];
    for (;;) {
      rows.at(-1).push(this.nodes(["&", "\\\\", end]));
      const token = this.next();
      if (token === end) break;
      if (token === undefined) this.fail(`wanted ${end}`);
      if (token === "\\\\") { this.optional(); rows.push([]); }
    }
    if (rows.length > 1 && rows.at(-1).every(cell => !cell.length)) rows.pop();
    return rows;
  }
  table(rows, attributes) {
    return mathNode("mtable", attributes, ...rows.map(cells => mathNode("mtr", {}, ...cells.map(cell => mathNode("mtd", {}, ...cell)))));
  }
  stack() {
    this.expect("{");
    return this.table(this.rows("}"), {});
  }
  environment(name) {
    if (!Object.hasOwn(kFences, name)) this.fail(`the environment ${name} is not known`);
    const columns = name === "array" || name === "alignedat" ? this.raw() : "";
    const rows = this.rows("\\end");
    if (this.raw() !== name) this.fail(`wanted \\end{${name}}`);
    const aligned = /^(align|split)/.test(name);
    const side = aligned ? "aligned" : /cases/.test(name) || /^l/.test(columns) ? "left" : "centre";
    const table = this.table(rows, { class: side, ...(/^(align|split|gather|equation)/.test(name) && { displaystyle: true }) });
    const [open, close] = [...kFences[name]];
    const fence = (text, form) => text && text !== " " ? [operator(text, { stretchy: true, fence: true, form })] : [];
    return mathNode("mrow", {}, ...fence(open, "prefix"), table, ...fence(close, "postfix"));
  }
}

// A formula; its source where it cannot be drawn.
function formula(text, display) {
  if (text.length > 20000) return make("code", { textContent: text });
  try {
    const tex = new Tex(text, display);
    const nodes = tex.nodes([]);
    const math = mathNode("math", display ? { display: "block" } : {}, mathNode("mrow", {}, ...nodes));
    math.source = text;
    return math;
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    return make("code", { className: "tex", textContent: text, title: `Not drawn: ${error.message}` });
  }
}
