// The style of the page that html_report.h writes. Every colour is a variable, so that dark mode and print
// change them once. The series' colours are Okabe and Ito's, which people with any kind of colour vision tell
// apart.
#pragma once

#include <string_view>

namespace dsv4::diag {

inline constexpr std::string_view kHtmlStyle = R"css(
:root { color-scheme: light dark;
  --page: #ffffff; --card: #f6f7f9; --text: #1b1f24; --soft: #57606a; --line: #d0d7de;
  --pass: #116329; --finding: #b3261e; --none: #57606a; --pass-back: #dafbe1; --finding-back: #ffe3e0; --none-back: #eaeef2;
  --s0: #0072b2; --s1: #d55e00; --s2: #009e73; --s3: #a8508a; --s4: #b07d00; --s5: #2f88c0; --s6: #444444; --s7: #8b4513;
  --seen: #0072b2; --notchosen: #d3dae1; --missing: #b3261e; --extra: #d98e04; }
@media (prefers-color-scheme: dark) { :root {
  --page: #0f1318; --card: #171c23; --text: #e6e9ed; --soft: #a3adb8; --line: #343c46;
  --pass: #7ee2a0; --finding: #ff9d94; --none: #a3adb8; --pass-back: #12351f; --finding-back: #471a17; --none-back: #262d36;
  --s0: #56b4e9; --s1: #ff9a4d; --s2: #2fcf9f; --s3: #e59ac8; --s4: #f0e442; --s5: #8fc7f0; --s6: #c8c8c8; --s7: #d9a066;
  --seen: #56b4e9; --notchosen: #343f4b; --missing: #ff7d72; --extra: #ffc14d; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 75rem; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; margin: 0 0 .5rem; }
h3 { font-size: 1rem; margin: .5rem 0; }
a { color: var(--s0); }
a:focus-visible, summary:focus-visible, .scroll:focus-visible { outline: 2px solid var(--s0); outline-offset: 2px; }
section { background: var(--card); border: 1px solid var(--line); border-left: .35rem solid var(--none); border-radius: .4rem;
  padding: 1rem; margin: 1.25rem 0; }
section.pass { border-left-color: var(--pass); }
section.finding { border-left-color: var(--finding); }
.badge { font-size: .85rem; font-weight: 600; padding: .1rem .5rem; border-radius: 1rem; white-space: nowrap; }
.badge.pass, .verdict.pass { color: var(--pass); background: var(--pass-back); }
.badge.finding, .verdict.finding { color: var(--finding); background: var(--finding-back); }
.badge.none, .verdict.none { color: var(--none); background: var(--none-back); }
.verdict { font-size: 1.15rem; font-weight: 600; padding: .6rem .9rem; border-radius: .4rem; margin: 0 0 1rem; }
.headline { font-weight: 600; margin: 0 0 .5rem; }
p, ul { margin: .35rem 0; }
li, dd, .headline { white-space: pre-wrap; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; font-size: .9rem; margin: 1rem 0; }
dt { color: var(--soft); }
dd { margin: 0; font-family: ui-monospace, "DejaVu Sans Mono", monospace; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
caption { text-align: left; font-weight: 600; padding: .5rem 0 .25rem; }
th, td { text-align: left; vertical-align: top; padding: .2rem .6rem; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; }
.summary { width: 100%; }
.summary td:nth-child(n + 3) { overflow-wrap: anywhere; min-width: 9rem; }
.summary td:first-child { white-space: nowrap; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); gap: 1rem; margin: .75rem 0; }
figure { margin: 0; padding: .6rem; background: var(--page); border: 1px solid var(--line); border-radius: .4rem; min-width: 0; }
figure.wide { grid-column: 1 / -1; }
figure h3 { margin-top: 0; }
figcaption, summary { font-size: .85rem; color: var(--soft); }
summary { cursor: pointer; }
details .scroll { max-height: 24rem; overflow: auto; }
svg.plot { display: block; width: 100%; height: auto; max-width: 34rem; }
svg.wide { max-width: none; min-width: 40rem; }
svg text { fill: var(--text); font-size: 11.5px; }
.ytick { text-anchor: end; }
.xtick, .xlabel { text-anchor: middle; }
.xlabel, .ylabel { font-size: 11.5px; font-weight: 600; }
.boundname { text-anchor: end; fill: var(--finding) !important; }
.grid { stroke: var(--line); stroke-width: .6; }
.axis, .tick { stroke: var(--soft); fill: none; }
.bound { stroke: var(--finding); stroke-width: 1.3; stroke-dasharray: 7 3; }
.panel { fill: none; stroke: var(--line); }
.line { fill: none; stroke-width: 1.6; }
.dashed { stroke-dasharray: 5 3; stroke-width: 2.2; }
.p.past { stroke: var(--finding) !important; stroke-width: 2; fill: none !important; }
.s0 { --c: var(--s0); } .s1 { --c: var(--s1); } .s2 { --c: var(--s2); } .s3 { --c: var(--s3); }
.s4 { --c: var(--s4); } .s5 { --c: var(--s5); } .s6 { --c: var(--s6); } .s7 { --c: var(--s7); }
.line { stroke: var(--c); }
.p, .bar { fill: var(--c); } .bar.past { fill: var(--finding); }
.seen { fill: var(--seen); } .notchosen { fill: var(--notchosen); } .missing { fill: var(--missing); } .extra { fill: var(--extra); }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .1rem 1rem; padding: 0; font-size: .85rem; }
.swatch { width: 22px; height: 12px; margin-right: .35rem; vertical-align: -1px; }
@media (max-width: 40rem) { body { padding: .6rem; } section { padding: .7rem; } dl { grid-template-columns: 1fr; }
  dd { margin-bottom: .4rem; } svg text, .xlabel, .ylabel { font-size: 13px; }
  .summary, .summary tbody, .summary tr, .summary td { display: block; border: 0; padding: 0; min-width: 0; } .summary tr:first-child { display: none; }
  .summary tr { border-bottom: 1px solid var(--line); padding: .5rem 0; }
  .summary td[data-name]:not(:empty)::before { content: attr(data-name) ": "; color: var(--soft); } }
@media print { :root { color-scheme: light;
  --page: #ffffff; --card: #ffffff; --text: #000000; --soft: #444444; --line: #bbbbbb;
  --pass: #116329; --finding: #b3261e; --none: #57606a; --pass-back: #ffffff; --finding-back: #ffffff; --none-back: #ffffff;
  --s0: #0072b2; --s1: #d55e00; --s2: #009e73; --s3: #a8508a; --s4: #b07d00; --s5: #2f88c0; --s6: #444444; --s7: #8b4513;
  --seen: #0072b2; --notchosen: #d3dae1; --missing: #b3261e; --extra: #d98e04; }
  body { max-width: none; font-size: 11px; } figure, tr { break-inside: avoid; } h2, h3 { break-after: avoid; }
  figure details { display: none; } .figures { grid-template-columns: 1fr 1fr; }
  .scroll, details .scroll { max-height: none; overflow: visible; }
  svg.wide { min-width: 0; } .boundname { fill: var(--finding); } }
)css";

}  // namespace dsv4::diag
