// The block structure of Markdown: lines to a list of blocks. Every block has
//   type  paragraph | heading | rule | code | quote | list | table
//   kind  what must be equal for a view of it to be updated in place
//   key   what must be equal for nothing to have changed
//   from  its first line

const MAX_DEPTH = 12;      // of quotes and lists; deeper ones are text
const MAX_COLUMNS = 100;
const MAX_RULE = 2000;     // characters of the line below a table's head

const FENCE = /^([ \t]*)(`{3,}|~{3,}(?!~))([^`\n]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?=[ \t]|$)/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const UNDERLINE = /^ {0,3}=+[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: |$)/;
const DELIMITERS = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const TASK = /^\[([ xX])\] /;

const blank = (line) => !/\S/.test(line);
const indentOf = (line) => line.search(/[^ ]|$/);

function fenceOf(line) {
  const found = FENCE.exec(line);
  return found && !(found[2][0] === '~' && found[3].includes('~~~')) ? found : null;
}

// The marker of a list item, or null. Deep indents are left to indented code.
function itemOf(line) {
  const found = ITEM.exec(line);
  if (!found || RULE.test(line)) return null;
  const indent = found[1].length;
  const after = indent + found[2].length;
  const spaces = indentOf(line.slice(after));
  const empty = blank(line.slice(after));
  return { indent, marker: found[2], content: after + (empty || spaces > 4 ? 1 : spaces), empty };
}

const kindOfMarker = (marker) => (marker.length > 1 ? marker[marker.length - 1] : marker);

// Whether a line ends the paragraph before it.
function interrupts(line) {
  if (HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || fenceOf(line)) return true;
  const item = itemOf(line);
  return !!item && item.indent < 4 && !item.empty && (item.marker.length === 1 || parseInt(item.marker, 10) === 1);
}

export function splitRow(line) {
  const cells = [];
  let text = line.trim();
  if (text[0] === '|') text = text.slice(1);
  let start = 0;
  for (let i = 0; i < text.length && cells.length < MAX_COLUMNS; i++) {
    if (text[i] === '\\') i++;
    else if (text[i] === '|') {
      cells.push(text.slice(start, i));
      start = i + 1;
    }
  }
  if (start < text.length) cells.push(text.slice(start));
  return cells.map((cell) => cell.trim().replaceAll('\\|', '|'));
}

function isTable(lines, i) {
  if (i + 1 >= lines.length || !lines[i].includes('|') || !lines[i + 1].includes('-') || lines[i + 1].length > MAX_RULE) return false;
  return DELIMITERS.test(lines[i + 1]) && splitRow(lines[i]).length === splitRow(lines[i + 1]).length;
}

function parseCode(lines, i, fence, open) {
  const indent = fence[1].length;
  const close = new RegExp('^[ \\t]*' + (fence[2][0] === '`' ? '`' : '~') + `{${fence[2].length},}[ \\t]*$`);
  const body = [];
  let end = i + 1;
  while (end < lines.length && !close.test(lines[end])) {
    const line = lines[end++];
    body.push(line.slice(Math.min(indent, indentOf(line))));
  }
  if (open && end === lines.length && /^[ \t]*[`~]{1,2}$/.test(body[body.length - 1])) body.pop();  // a closing fence on its way
  const language = /^[^\s{,]*/.exec(fence[3].trim())[0].slice(0, 30);
  return [{ type: 'code', kind: 'code ' + language, language, text: body.join('\n') }, Math.min(end + 1, lines.length)];
}

function parseQuote(lines, i, open, depth) {
  const inner = [];
  let end = i;
  let lazy = false;  // the line before was text, so that plain text may go on without its ">"
  for (; end < lines.length; end++) {
    if (QUOTE.test(lines[end])) {
      inner.push(lines[end].replace(QUOTE, ''));
      lazy = !blank(inner[inner.length - 1]);
    } else if (lazy && !blank(lines[end]) && !interrupts(lines[end])) {
      inner.push(lines[end]);
    } else {
      break;
    }
  }
  return [{ type: 'quote', kind: 'quote', blocks: parseBlocks(inner, open && end === lines.length, depth + 1) }, end];
}

function parseList(lines, i, first, open, depth) {
  const ordered = first.marker.length > 1;
  const items = [];
  let end = i;
  let loose = false;
  while (end < lines.length) {
    const item = itemOf(lines[end]);
    if (!item || item.indent > first.indent + 3 || kindOfMarker(item.marker) !== kindOfMarker(first.marker)) break;
    const start = end;
    const inside = Math.min(item.content, item.indent + 2);
    const inner = [lines[end++].slice(item.content)];
    let blanks = 0;
    let fence = null;
    for (; end < lines.length; end++) {
      const line = lines[end];
      if (blank(line)) {
        blanks++;
        continue;
      }
      const indent = indentOf(line);
      if (indent < inside && (blanks || fence || itemOf(line) || interrupts(line))) break;
      for (; blanks; blanks--) inner.push('');
      inner.push(line.slice(Math.min(indent, item.content)));
      const mark = fenceOf(line);
      if (mark) fence = fence ? null : mark;
    }
    const last = end === lines.length;
    const task = TASK.exec(inner[0]);
    if (task) inner[0] = inner[0].slice(task[0].length);
    const blocks = parseBlocks(inner, open && last, depth + 1);
    items.push({ key: lines.slice(start, end - blanks).join('\n') + (open && last ? '\0' : ''), checked: task ? task[1] !== ' ' : null, blocks });
    const apart = blocks.some((block, b) => b > 0 && block.type === 'paragraph' && inner[block.from - 1] === '');
    const next = !last && blanks && itemOf(lines[end]);
    if (apart || (next && kindOfMarker(next.marker) === kindOfMarker(first.marker))) loose = true;
    if (last) break;
  }
  const start = ordered ? parseInt(first.marker, 10) : 1;
  return [{ type: 'list', kind: `list ${ordered ? start : '-'}`, ordered, start, loose, items }, end];
}

function parseTable(lines, i, open) {
  const align = splitRow(lines[i + 1]).map((cell) => (cell.endsWith(':') ? (cell.startsWith(':') ? 'center' : 'right') : ''));
  const row = (line, growing) => ({ key: line + (growing ? '\0' : ''), cells: splitRow(line), open: growing });
  const rows = [];
  let end = i + 2;
  for (; end < lines.length && !blank(lines[end]) && !interrupts(lines[end]); end++) rows.push(row(lines[end], open && end === lines.length - 1));
  return [{ type: 'table', kind: 'table ' + lines[i + 1].trim(), align, head: row(lines[i], false), rows }, end];
}

function parseHeading(line, level, open) {
  let text = line.trim().slice(level).trim();
  let end = text.length;
  while (end > 0 && text[end - 1] === '#') end--;
  if (end === 0 || /[ \t]/.test(text[end - 1])) text = text.slice(0, end).trim();
  return { type: 'heading', kind: 'heading ' + level, level, text, open };
}

// `open`: the last line may still grow.
export function parseBlocks(lines, open = false, depth = 0) {
  const blocks = [];
  if (lines.some((line) => line.includes('\t') || line.endsWith('\r'))) {
    lines = lines.map((line) => line.replace(/\r$/, '').replace(/^[ \t]+/, (lead) => lead.replaceAll('\t', '    ')));
  }
  for (let i = 0; i < lines.length;) {
    const line = lines[i];
    if (blank(line)) {
      i++;
      continue;
    }
    const from = i;
    let block;
    const fence = fenceOf(line);
    const heading = HEADING.exec(line);
    const item = depth < MAX_DEPTH ? itemOf(line) : null;
    if (fence) {
      [block, i] = parseCode(lines, i, fence, open);
    } else if (item && item.indent < 4) {
      [block, i] = parseList(lines, i, item, open, depth);
    } else if (indentOf(line) >= 4) {
      const body = [];
      for (; i < lines.length && (indentOf(lines[i]) >= 4 || blank(lines[i])); i++) body.push(lines[i].slice(4));
      while (blank(body[body.length - 1])) body.pop();
      block = { type: 'code', kind: 'code ', language: '', text: body.join('\n') };
    } else if (heading) {
      block = parseHeading(line, heading[1].length, open && i === lines.length - 1);
      i++;
    } else if (RULE.test(line)) {
      block = { type: 'rule', kind: 'rule' };
      i++;
    } else if (depth < MAX_DEPTH && QUOTE.test(line)) {
      [block, i] = parseQuote(lines, i, open, depth);
    } else if (isTable(lines, i)) {
      [block, i] = parseTable(lines, i, open);
    } else {
      i++;
      while (i < lines.length && !blank(lines[i]) && !interrupts(lines[i]) && !UNDERLINE.test(lines[i]) && !isTable(lines, i)) i++;
      const growing = open && i === lines.length;
      const text = lines.slice(from, i).map((l) => l.trimStart()).join('\n').trimEnd();
      if (i < lines.length && UNDERLINE.test(lines[i])) {
        block = { type: 'heading', kind: 'heading 1', level: 1, text, open: false };
        i++;
      } else {
        block = { type: 'paragraph', kind: 'paragraph', text, open: growing };
      }
    }
    block.from = from;
    block.key = lines.slice(from, i).join('\n') + (open && i === lines.length ? '\0' : '');
    blocks.push(block);
  }
  return blocks;
}
