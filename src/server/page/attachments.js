// Files that go with a question: text as it is, and the text of documents that are archives of XML (Word, Excel, PowerPoint, OpenDocument).
"use strict";

const kLargestFile = 4 << 20;
const kAttachable = "Text of any kind can be attached (notes, code, Markdown, CSV, JSON, logs), and documents of Word, Excel, PowerPoint and LibreOffice.";

// Text of UTF-8, or of UTF-16 that says so; anything else is no text.
function decodeText(bytes) {
  const [a, b] = bytes;
  const encoding = a === 0xff && b === 0xfe ? "utf-16le" : a === 0xfe && b === 0xff ? "utf-16be" : "utf-8";
  try {
    const text = new TextDecoder(encoding, { fatal: true }).decode(bytes);
    return text.includes("\0") ? null : text.replaceAll("\r\n", "\n");
  } catch { return null; }
}

// How the files begin that people try, and what to say of them.
const kKinds = [
  [/^%PDF/, "is a PDF, which this page cannot read: copy its text, or save it as text"],
  [/^\x89PNG|^\xff\xd8\xff|^GIF8|^RIFF....WEBP|^BM|^....ftyp(?:avif|heic|mif1)/s, "is a picture, and the model reads text only"],
  [/^ID3|^OggS|^fLaC|^RIFF....WAVE|^\xff[\xfb\xf3]/s, "is a recording, and the model reads text only"],
  [/^....ftyp|^\x1a\x45\xdf\xa3|^RIFF....AVI/s, "is a film, and the model reads text only"],
  [/^\xd0\xcf\x11\xe0/, "is a document of an old form of Office: save it as text, or as .docx"],
  [/^PK\x03\x04|^\x1f\x8b|^7z|^Rar!|^\xfd7zXZ|^\x28\xb5\x2f\xfd/, "is an archive: attach what is in it"],
];

// The files of a ZIP archive: a function from a name to its text, or null where the bytes are no archive.
function openArchive(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let end = bytes.length - 22;
  while (end >= 0 && view.getUint32(end, true) !== 0x06054b50) end--;
  if (end < 0) return null;
  const entries = new Map();
  let at = view.getUint32(end + 16, true);
  for (let i = view.getUint16(end + 10, true); i > 0; i--) {
    if (view.getUint32(at, true) !== 0x02014b50) return null;
    const [name, extra, comment] = [28, 30, 32].map(place => view.getUint16(at + place, true));
    entries.set(new TextDecoder().decode(bytes.subarray(at + 46, at + 46 + name)),
      { packed: view.getUint16(at + 10, true) === 8, size: view.getUint32(at + 20, true), start: view.getUint32(at + 42, true) });
    at += 46 + name + extra + comment;
  }
  const text = async name => {
    const { packed, size, start } = entries.get(name);
    const from = start + 30 + view.getUint16(start + 26, true) + view.getUint16(start + 28, true);
    const stored = bytes.subarray(from, from + size);
    if (!packed) return new TextDecoder().decode(stored);
    // A few bytes may stand for many: no more is unpacked than could be attached as XML.
    const reader = new Blob([stored]).stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader();
    const parts = [];
    let length = 0;
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return new TextDecoder().decode(await new Blob(parts).arrayBuffer());
      if ((length += value.length) > 16 * kLargestFile) { await reader.cancel(); throw new Error("too much text"); }
      parts.push(value);
    }
  };
  return { names: [...entries.keys()], text };
}

const numbered = (archive, pattern) => archive.names.filter(name => pattern.test(name)).sort((a, b) => a.match(pattern)[1] - b.match(pattern)[1]);
const words = xml => unescaped([...xml.matchAll(/<t(?: [^>]*)?>([^<]*)<\/t>/g)].map(match => match[1]).join(""));

// The cells of a workbook of Excel: a line for each row, tabs between the columns, an empty line between the sheets.
async function workbookText(archive) {
  const shared = archive.names.includes("xl/sharedStrings.xml") ? [...(await archive.text("xl/sharedStrings.xml")).matchAll(/<si>([^]*?)<\/si>/g)].map(match => words(match[1])) : [];
  const sheets = await Promise.all(numbered(archive, /^xl\/worksheets\/sheet(\d+)\.xml$/).map(archive.text));
  return sheets.map(xml => [...xml.matchAll(/<row\b[^>]*>([^]*?)<\/row>/g)].map(([, row]) => {
    const cells = [];
    for (const [, attributes, inner] of row.matchAll(/<c\b([^>]*?)(?:\/>|>([^]*?)<\/c>)/g)) {
      const column = [...attributes.match(/\br="([A-Z]{1,3})\d/)?.[1] ?? ""].reduce((sum, letter) => 26 * sum + letter.charCodeAt(0) - 64, 0) - 1;
      const value = inner?.match(/<v>([^<]*)<\/v>/)?.[1] ?? "";
      cells[column < 0 ? cells.length : column] = /\bt="s"/.test(attributes) ? shared[value] ?? "" : /\bt="inlineStr"/.test(attributes) ? words(inner) : unescaped(value);
    }
    return Array.from(cells, cell => cell ?? "").join("\t");
  }).join("\n")).join("\n\n").trim();
}

// The words of a document: its parts that hold text, a line for each paragraph. Null: no document of a known form.
async function documentText(bytes) {
  const archive = openArchive(bytes);
  if (!archive) return null;
  const slides = numbered(archive, /^ppt\/slides\/slide(\d+)\.xml$/);
  if (archive.names.includes("xl/workbook.xml")) return workbookText(archive);
  const parts = ["word/document.xml", "content.xml"].filter(name => archive.names.includes(name)).concat(slides);
  if (!parts.length) return null;
  const texts = await Promise.all(parts.map(archive.text));
  return texts.map(xml => unescaped(xml.replace(/<(?:w:tab|text:tab)\b[^>]*>|<\/(?:table:table-cell|w:tc)>/g, "\t").replace(/<(?:w:br|text:line-break|text:s)\b[^>]*>/g, match => (match.startsWith("<text:s") ? " " : "\n"))
    .replace(/<\/(?:w:p|a:p|text:p|text:h|table:table-row)>/g, "\n").replace(/<(w:instrText|w:delText)\b[^>]*>[^]*?<\/\1>|<[^>]*>/g, ""))
    .replace(/\n{3,}/g, "\n\n").trim()).join("\n\n");
}

// {text}, or {fault}: why the file is not taken.
async function readAttachment(file) {
  if (file.size > kLargestFile) return { fault: `${file.name} has ${(file.size / (1 << 20)).toFixed(1)} MB, at most 4 MB are taken` };
  let bytes;
  try { bytes = new Uint8Array(await file.arrayBuffer()); } catch (error) { return { fault: `${file.name} cannot be read (${error.message})` }; }
  const head = String.fromCharCode(...bytes.subarray(0, 16));
  try {
    const text = head.startsWith("PK") ? await documentText(bytes) : /^%PDF/.test(head) ? null : decodeText(bytes);
    if (text) return { text };
    if (text === "") return { fault: `${file.name} has no text` };
  } catch (error) { return { fault: `${file.name} cannot be read (${error.message})` }; }
  return { fault: `${file.name} ${kKinds.find(([start]) => start.test(head))?.[1] ?? "is no text in UTF-8 or UTF-16"}` };
}
