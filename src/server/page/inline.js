// The inline part of Markdown: emphasis, code spans, links, breaks, TeX. One pass from left to right over the text; a
// closer wraps the nodes behind its opener, so each node moves once a level, and at most MAX_OPEN openers wait.
import { h } from './dom.js';

const MAX_OPEN = 32;
const MAX_RUN = 6;          // more stars than this in a row are text
const SPECIAL = /[\\`*_~[\]!<&\n$h]/g;
const DESTINATION = /\([ \n]{0,9}(?:<([^<>\n]{0,2000})>|((?:[^\s()<>]|\([^\s()<>]*\)){0,2000}))(?:\s{1,9}(?:"[^"]{0,500}"|'[^']{0,500}'))?\s{0,9}\)/y;
const AUTOLINK = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/y;
const BARE = /https?:\/\/[^\s<>"`]{1,2000}/y;
const BREAK = /<br\s?\/?>/iy;
const ENTITY = /&(?:#(\d{1,7})|#[xX]([\da-fA-F]{1,6})|(amp|lt|gt|quot|apos|nbsp|copy|mdash|ndash|hellip));/y;
const ENTITIES = { amp: '&', lt: '<', gt: '>', quot: '"', apos: "'", nbsp: '\u00a0', copy: '©', mdash: '—', ndash: '–', hellip: '…' };
const PUNCTUATION = /[\p{P}\p{S}]/u;

// The address of a link, or null when it is not one that a reader may follow.
export function safeLink(address) {
  try {
    const url = new URL(address);
    return ['http:', 'https:', 'mailto:'].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function link(address, nodes) {
  const href = safeLink(address);
  return href ? h('a', { href, target: '_blank', rel: 'noopener noreferrer nofollow' }, nodes) : h('span', { class: 'dead-link', title: 'Not a web address' }, nodes);
}

// Finds the end of code spans in constant time each: the starts of all runs of backticks, by length.
class Backticks {
  constructor(text) {
    this.runs = new Map();
    for (const found of text.matchAll(/`+/g)) {
      const length = found[0].length;
      if (!this.runs.has(length)) this.runs.set(length, { at: 0, starts: [] });
      this.runs.get(length).starts.push(found.index);
    }
  }
  after(position, length) {
    const run = this.runs.get(length);
    while (run && run.at < run.starts.length && run.starts[run.at] < position) run.at++;
    return run?.starts[run.at] ?? -1;
  }
}

class Inline {
  constructor(text, open) {
    this.text = text;
    this.open = open;
    this.out = [];       // nodes, strings, and openers that wait
    this.waiting = [];   // those openers, oldest first
    this.plain = '';
    this.ends = new Map();  // where a search for the end of TeX failed
  }

  flush() {
    if (this.plain) this.out.push(this.plain);
    this.plain = '';
  }
  emit(node) {
    this.flush();
    this.out.push(node);
  }

  // Starts to wait for a closer; the oldest opener gives up when too many do.
  wait(opener) {
    this.emit(opener);
    this.waiting.push(opener);
    if (this.waiting.length > MAX_OPEN) this.waiting.shift();
  }

  // Everything behind an opener, which leaves `out`; openers among it are text by now.
  take(index) {
    this.flush();
    const at = this.out.lastIndexOf(this.waiting[index]);
    this.waiting.length = index + 1;
    return this.finish(this.out.splice(at + 1));
  }
  // Openers without a closer are text; neighbouring texts become one.
  finish(parts) {
    const nodes = [];
    let text = [];
    const flush = () => {
      if (text.length) nodes.push(text.join(''));
      text = [];
    };
    for (const part of parts) {
      if (part instanceof Node) {
        flush();
        nodes.push(part);
      } else {
        text.push(typeof part === 'string' ? part : part.mark.repeat(part.count));
      }
    }
    flush();
    return nodes;
  }

  delimiters(at) {
    const mark = this.text[at];
    let end = at;
    while (this.text[end] === mark) end++;
    let count = end - at;
    const before = at ? this.text[at - 1] : ' ';
    const after = this.text[end] ?? ' ';
    const space = /\s/;
    const left = !space.test(after) && (!PUNCTUATION.test(after) || space.test(before) || PUNCTUATION.test(before));
    const right = !space.test(before) && (!PUNCTUATION.test(before) || space.test(after) || PUNCTUATION.test(after));
    const opens = mark === '_' ? left && (!right || PUNCTUATION.test(before)) : left;
    const closes = mark === '_' ? right && (!left || PUNCTUATION.test(after)) : right;
    if (count > MAX_RUN || (mark === '~' && count !== 2) || (!opens && !closes)) {
      this.plain += this.text.slice(at, end);
      return end;
    }
    if (closes) {
      for (let i = this.waiting.length - 1; i >= 0 && count; i--) {
        const opener = this.waiting[i];
        if (opener.mark !== mark) continue;
        // CommonMark's rule of three: where either side could be both, lengths that add up to a multiple of 3 do not match.
        if ((opener.closes || opens) && (opener.length + end - at) % 3 === 0 && (opener.length % 3 || (end - at) % 3)) continue;
        while (count && opener.count) {
          const used = Math.min(2, count, opener.count);
          const nodes = this.take(i);
          this.out.push(h(mark === '~' ? 's' : used === 2 ? 'strong' : 'em', {}, nodes));
          opener.count -= used;
          count -= used;
        }
        if (!opener.count) {
          this.out.splice(this.out.lastIndexOf(opener), 1);
          this.waiting.splice(i, 1);
        }
      }
    }
    if (!count) return end;
    if (opens) this.wait({ mark, count, length: end - at, closes });
    else this.plain += mark.repeat(count);
    return end;
  }

  closeBracket(at) {
    let i = this.waiting.length - 1;
    while (i >= 0 && this.waiting[i].mark !== '[' && this.waiting[i].mark !== '![') i--;
    if (i < 0) {
      this.plain += ']';
      return at + 1;
    }
    DESTINATION.lastIndex = at + 1;
    const found = this.text[at + 1] === '(' ? DESTINATION.exec(this.text) : null;
    const unfinished = !found && this.open && this.text[at + 1] === '(' && !/[\s)]/.test(this.text.slice(at + 1, at + 3000));
    if ((!found && !unfinished) || this.waiting[i].dead) {
      this.waiting.splice(i, 1);
      this.plain += ']';
      return at + 1;
    }
    const image = this.waiting[i].mark === '![';
    const nodes = this.take(i);
    this.waiting.pop();
    this.out.pop();
    if (image && !nodes.length) nodes.push('image');
    if (!image) for (const opener of this.waiting) if (opener.mark === '[') opener.dead = true;
    this.out.push(found ? link(found[1] ?? found[2], nodes) : h('a', {}, nodes));
    return found ? at + 1 + found[0].length : this.text.length;
  }

  // \( \), \[ \] and $$ $$ stay as written. Returns 0 when this is none.
  tex(at, close) {
    if (at < (this.ends.get(close) ?? Infinity)) {
      const end = this.text.indexOf(close, at + 2);
      if (end >= 0) {
        this.emit(h('span', { class: 'tex' }, this.text.slice(at, end + 2)));
        return end + 2;
      }
      this.ends.set(close, at);
    }
    return 0;
  }

  run() {
    const text = this.text;
    const ticks = text.includes('`') ? new Backticks(text) : null;
    for (let at = 0; at < text.length;) {
      SPECIAL.lastIndex = at;
      const found = SPECIAL.exec(text);
      const stop = found ? found.index : text.length;
      this.plain += text.slice(at, stop);
      at = stop;
      if (at >= text.length) break;
      at = this.special(at, ticks);
    }
    this.flush();
    if (this.open) this.closeAtEnd();
    return this.finish(this.out);
  }

  special(at, ticks) {
    const { text } = this;
    const c = text[at];
    const sticky = (regex) => {
      regex.lastIndex = at;
      return regex.exec(text);
    };
    let found;
    switch (c) {
      case '\n':
        this.plain = this.plain.replace(/[ \t]{1,8}$/, '');
        this.emit(h('br'));
        return at + 1;
      case '\\': {
        const next = text[at + 1] ?? '';
        const end = next === '(' ? this.tex(at, '\\)') : next === '[' ? this.tex(at, '\\]') : 0;
        if (end) return end;
        if (next === '\n') return at + 1;
        this.plain += /[!-/:-@[-`{-~]/.test(next) ? next : c + next;
        return at + 1 + next.length;
      }
      case '$': {
        const end = text[at + 1] === '$' ? this.tex(at, '$$') : 0;
        if (!end) this.plain += c;
        return end || at + 1;
      }
      case '`': {
        let start = at;
        while (text[start] === '`') start++;
        let end = ticks.after(start, start - at);
        const tail = end < 0 && this.open && start < text.length;
        if (end < 0 && !tail) {
          this.plain += text.slice(at, start);
          return start;
        }
        if (tail) end = text.length;
        let code = text.slice(start, end).replaceAll('\n', ' ');
        if (code.length > 2 && code[0] === ' ' && code.endsWith(' ') && /\S/.test(code)) code = code.slice(1, -1);
        this.emit(h('code', {}, code));
        return tail ? end : end + start - at;
      }
      case '*': case '_': case '~':
        return this.delimiters(at);
      case '!':
        if (text[at + 1] === '[') {
          this.wait({ mark: '![', count: 1 });
          return at + 2;
        }
        break;
      case '[':
        this.wait({ mark: '[', count: 1 });
        return at + 1;
      case ']':
        return this.closeBracket(at);
      case '<':
        if ((found = sticky(AUTOLINK))) {
          this.emit(link(found[1], [found[1]]));
          return at + found[0].length;
        }
        if ((found = sticky(BREAK))) {
          this.emit(h('br'));
          return at + found[0].length;
        }
        break;
      case '&':
        if ((found = sticky(ENTITY))) {
          const code = found[1] ? parseInt(found[1], 10) : found[2] ? parseInt(found[2], 16) : 0;
          this.plain += found[3] ? ENTITIES[found[3]] : code > 0 && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) ? String.fromCodePoint(code) : '\ufffd';
          return at + found[0].length;
        }
        break;
      case 'h':
        if (!/[\p{L}\p{N}]/u.test(text[at - 1] ?? ' ') && !this.waiting.some((w) => w.mark === '[') && (found = sticky(BARE))) {
          const address = trimAddress(found[0]);
          this.emit(link(address, [address]));
          return at + address.length;
        }
        break;
    }
    this.plain += c;
    return at + 1;
  }

  // The text goes on: what is open at its end is shown closed.
  closeAtEnd() {
    for (let i = this.waiting.length - 1; i >= 0; i--) {
      const opener = this.waiting[i];
      if (opener.mark === '[' || opener.mark === '![') continue;
      const nodes = this.take(i);
      this.out.pop();
      this.waiting.pop();
      if (nodes.length) this.out.push(h(opener.mark === '~' ? 's' : opener.count >= 2 ? 'strong' : 'em', {}, nodes));
    }
  }
}

// A bare address ends before the punctuation that ends the sentence, and before a ")" that it did not open.
function trimAddress(address) {
  let balance = 0;
  for (const c of address) balance += c === '(' ? 1 : c === ')' ? -1 : 0;
  let end = address.length;
  for (; end > 8; end--) {
    const c = address[end - 1];
    if (c === ')' && balance < 0) balance++;
    else if (!/[.,;:!?'*_~\]]/.test(c)) break;
  }
  return address.slice(0, end);
}

export const renderInline = (text, open = false) => new Inline(text, open).run();
