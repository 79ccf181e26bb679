// Colours of code: comments, strings, numbers, keywords, names that are called. A scanner of tokens, not a parser, by families of languages.
"use strict";

const kWords = {
  c: "auto break case char const continue default do double else enum extern float for goto if inline int long register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while bool true false NULL nullptr",
  cpp: "alignas alignof and auto bool break case catch char class co_await co_return co_yield concept const consteval constexpr constinit const_cast continue decltype default delete do double dynamic_cast else enum explicit export extern false final float for friend goto if inline int long mutable namespace new noexcept not nullptr operator or override private protected public reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch template this thread_local throw true try typedef typename union unsigned using virtual void volatile while __global__ __device__ __shared__ __host__",
  java: "abstract assert boolean break byte case catch char class const continue default do double else enum extends final finally float for if implements import instanceof int interface long native new null package private protected public record return sealed short static super switch synchronized this throw throws transient true false try var void volatile while yield string bool decimal foreach in is namespace object out override params readonly ref using virtual async await get set where",
  js: "as async await break case catch class const continue debugger default delete do else enum export extends false finally for from function get if implements import in instanceof interface keyof let namespace new null of private protected public readonly return set static super switch this throw true try type typeof undefined var void while with yield any boolean declare never number string unknown",
  go: "break case chan const continue default defer else fallthrough for func go goto if import interface map package range return select struct switch type var true false nil iota bool byte error float32 float64 int int8 int16 int32 int64 rune string uint uint8 uint16 uint32 uint64 any",
  rust: "as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait true type unsafe use where while bool char f32 f64 i8 i16 i32 i64 i128 isize str u8 u16 u32 u64 u128 usize String Vec Option Result",
  swift: "actor as associatedtype async await break case catch class continue default defer deinit do else enum extension false fileprivate final for func guard if import in init inout internal is lazy let nil open operator override private protocol public repeat return self Self static struct subscript super switch throw throws true try typealias var weak where while data fun interface object sealed val when null companion suspend by constructor",
  python: "False None True and as assert async await break case class continue def del elif else except finally for from global if import in is lambda match nonlocal not or pass raise return try while with yield self",
  ruby: "alias and begin break case class def defined do else elsif end ensure false for if in module next nil not or redo rescue retry return self super then true undef unless until when while yield require attr_accessor attr_reader puts",
  php: "abstract and array as break case catch class clone const continue declare default do echo else elseif empty extends false final finally fn for foreach function global if implements include instanceof interface isset match namespace new null or print private protected public readonly require return static switch throw trait true try unset use var while yield my sub our local use package foreach elsif unless die",
  shell: "if then else elif fi for while until do done case esac in function return exit local export readonly declare set unset shift break continue source alias echo cd trap eval exec test sudo FROM RUN CMD COPY ADD ENV WORKDIR EXPOSE ENTRYPOINT ARG VOLUME USER",
  sql: "add all alter and any as asc begin between by case cast check column commit constraint create cross database default delete desc distinct drop else end except exists false foreign from full group having if in index inner insert intersect into is join key left like limit not null offset on or order outer over partition primary references returning right rollback select set table then transaction true union unique update using values view when where window with",
  lua: "and break do else elseif end false for function goto if in local nil not or repeat return then true until while",
  haskell: "case class data default deriving do else family forall if import in infix infixl infixr instance let module newtype of qualified then type where let rec fun match with val mutable begin end",
  lisp: "def defn defun define defmacro defvar fn lambda let let* letrec if cond case when unless do loop begin set! setq quote nil true false t ns require progn and or not",
  data: "true false null yes no on off",
  nothing: "",
};
// Family: [comments, strings, words]. What is not closed ends with its line, or with the text where it may have several lines.
const kSlash = "\\/\\/.*|\\/\\*[^]*?(?:\\*\\/|(?![^]))";
const kHash = "(?<![^\\s;(])#.*";
const kDash = "--.*";
const kDouble = '"(?:[^"\\\\\\n]|\\\\[^])*(?:"|(?=\\n)|$)';
const kSingle = "'(?:[^'\\\\\\n]|\\\\[^])*(?:'|(?=\\n)|$)";
const kTick = "`(?:[^`\\\\]|\\\\[^])*(?:`|(?![^]))";
const kChar = "'(?:[^'\\\\\\n]|\\\\[^'\\n]+|\\\\')'";
const kTriple = '"""[^]*?(?:"""|(?![^]))|\'\'\'[^]*?(?:\'\'\'|(?![^]))';
const kFamilies = {
  c: [kSlash, `${kDouble}|${kChar}|^[ \\t]*#[ \\t]*\\w+`, "c"],
  cpp: [kSlash, `${kDouble}|${kChar}|^[ \\t]*#[ \\t]*\\w+`, "cpp"],
  java: [kSlash, `${kTriple}|${kDouble}|${kChar}`, "java"],
  js: [kSlash, `${kDouble}|${kSingle}|${kTick}`, "js"],
  go: [kSlash, `${kDouble}|${kChar}|${kTick}`, "go"],
  rust: [kSlash, `${kDouble}|${kChar}`, "rust"],
  swift: [kSlash, `${kTriple}|${kDouble}|${kChar}`, "swift"],
  php: [`${kSlash}|${kHash}`, `${kDouble}|${kSingle}`, "php"],
  css: ["\\/\\*[^]*?(?:\\*\\/|(?![^]))", `${kDouble}|${kSingle}|#[0-9a-fA-F]{3,8}\\b`, "nothing"],
  python: [kHash, `${kTriple}|${kDouble}|${kSingle}`, "python"],
  ruby: [kHash, `${kDouble}|${kSingle}`, "ruby"],
  shell: [kHash, `${kDouble}|'[^']*(?:'|(?![^]))`, "shell"],
  data: [`${kHash}|^\\s*;.*`, `${kTriple}|${kDouble}|${kSingle}`, "data"],
  json: ["\\/\\/.*", kDouble, "data"],
  sql: [`${kDash}|\\/\\*[^]*?(?:\\*\\/|(?![^]))`, `${kDouble}|${kSingle}`, "sql"],
  lua: [`--\\[\\[[^]*?(?:\\]\\]|(?![^]))|${kDash}`, `${kDouble}|${kSingle}|\\[\\[[^]*?(?:\\]\\]|(?![^]))`, "lua"],
  haskell: [`${kDash}|\\{-[^]*?(?:-\\}|(?![^]))|\\(\\*[^]*?(?:\\*\\)|(?![^]))`, kDouble, "haskell"],
  lisp: [";.*", kDouble, "lisp"],
  markup: ["<!--[^]*?(?:-->|(?![^]))", `(?<==\\s*)(?:"[^"]*"|'[^']*')`, "nothing"],
  tex: ["(?<!\\\\)%.*", "\\$[^$\\n]*\\$", "nothing"],
};
const kLanguages = {
  c: "c h objc", cpp: "cpp c++ cc cxx hpp cu cuda glsl hlsl", java: "java cs csharp c# scala groovy dart", js: "js javascript jsx mjs ts tsx typescript",
  go: "go golang", rust: "rust rs", swift: "swift kotlin kt", php: "php perl pl", css: "css scss less", python: "python py python3 mojo r julia jl nim",
  ruby: "ruby rb elixir ex crystal", shell: "sh bash shell zsh fish console dockerfile docker makefile make cmake powershell ps1", data: "yaml yml toml ini conf properties env",
  json: "json json5 jsonc jsonl", sql: "sql sqlite postgresql mysql", lua: "lua", haskell: "haskell hs ocaml ml elm fsharp",
  lisp: "lisp scheme clojure clj elisp racket asm", markup: "html xml svg xhtml vue markup", tex: "tex latex",
};
const kFamilyOf = new Map(Object.entries(kLanguages).flatMap(([family, names]) => names.split(" ").map(name => [name, family])));
const kMostHighlighted = 60000;  // Characters; a longer block stays plain.

const scanners = new Map();  // Of a family: {pattern, words}.
function scannerOf(family) {
  if (!scanners.has(family)) {
    const [comments, strings, words] = kFamilies[family];
    const names = family === "markup" ? "<\\/?[\\w:-]+|\\/?>" : family === "tex" ? "\\\\[a-zA-Z]+" : "[\\p{L}_$@][\\p{L}\\p{N}_$]*[*!?]?(?=\\s*\\()|[\\p{L}_$@][\\p{L}\\p{N}_$]*";
    const numbers = "\\b(?:0[xX][0-9a-fA-F_]+|0[bB][01_]+|[0-9][0-9_]*(?:\\.[0-9_]+)?(?:[eE][+-]?[0-9]+)?)\\w*";
    scanners.set(family, { pattern: new RegExp(`(${comments})|(${strings})|(${numbers})|(${names})`, "gmu"), words: new Set(kWords[words].split(" ")) });
  }
  return scanners.get(family);
}

function highlightDiff(node, text) {
  for (const line of text.split(/(?<=\n)/)) {
    const kind = line.startsWith("+") ? "added" : line.startsWith("-") ? "taken" : line.startsWith("@@") ? "keyword" : null;
    node.append(kind ? make("span", { className: kind, textContent: line }) : line);
  }
}

// Appends the text, in pieces with classes. The text of all is that of the code.
function highlight(node, language, text) {
  const name = language.toLowerCase();
  if (name === "diff" || name === "patch") { highlightDiff(node, text); return; }
  const family = kFamilyOf.get(name);
  if (!family || text.length > kMostHighlighted) { node.append(text); return; }
  const { pattern, words } = scannerOf(family);
  let at = 0;
  for (const match of text.matchAll(pattern)) {
    const [all, comment, string, numeral, word] = match;
    const key = family === "sql" ? word?.toLowerCase() : word;
    const kind = comment !== undefined ? "comment" : string !== undefined ? "string" : numeral !== undefined ? "numeral"
      : words.has(key) || family === "markup" || family === "tex" ? "keyword" : /^\s*\(/.test(text.slice(match.index + word.length, match.index + word.length + 8)) ? "called" : null;
    if (!kind || !all) continue;
    if (match.index > at) node.append(text.slice(at, match.index));
    node.append(make("span", { className: kind, textContent: all }));
    at = match.index + all.length;
  }
  if (at < text.length) node.append(text.slice(at));
}
