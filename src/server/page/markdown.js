// Markdown as models write it, into DOM nodes: no HTML is ever parsed, text becomes text nodes and links are checked.
// Differs from CommonMark on purpose: a line break is a break, raw HTML is text, "---" below a paragraph is a rule, lists may
// nest by two spaces, images become links, TeX stays as written. Time is linear in the text; depth is bounded.
import { parseBlocks } from './blocks.js';
import { renderInline } from './inline.js';
import { languageOf, tokenize } from './highlight.js';
import { add, copyButton, fill, h } from './dom.js';

const MAX_COLOURED = 200_000;  // characters of a code block; longer ones stay plain

// A view shows one block and can be given a later state of it; what has not changed keeps its nodes.
class TextView {
  constructor(tag) {
    this.el = h(tag);
  }
  update(block) {
    fill(this.el, renderInline(block.text, block.open));
  }
}

class CodeView {
  constructor(block) {
    this.language = languageOf(block.language);
    this.code = h('code');
    this.line = 0;       // start of the first line that is not final
    this.text = '';
    this.state = null;   // of the tokenizer at that line
    this.tail = [];      // nodes of the line that still grows
    this.el = h('div', { class: 'code' },
      h('div', { class: 'code-head' }, h('span', {}, block.language || 'text'), copyButton('Copy code', () => this.text)),
      h('pre', { tabindex: '0' }, this.code));
  }
  update(block) {
    if (!block.text.startsWith(this.text.slice(0, this.line))) {
      this.code.replaceChildren();
      [this.line, this.state, this.tail] = [0, null, []];
    }
    for (const node of this.tail) node.remove();
    this.text = block.text;
    for (;;) {
      const end = this.text.indexOf('\n', this.line);
      const [nodes, state] = this.render(this.text.slice(this.line, end < 0 ? undefined : end + 1));
      add(this.code, nodes);
      this.tail = nodes;
      if (end < 0) return;
      this.state = state;
      this.line = end + 1;
    }
  }
  render(line) {
    if (!this.language || this.line > MAX_COLOURED || line.length > 5000) return [line ? [document.createTextNode(line)] : [], this.state];
    const [tokens, state] = tokenize(this.language, line, this.state);
    return [tokens.map(([kind, text]) => (kind ? h('span', { class: 'hl-' + kind }, text) : document.createTextNode(text))), state];
  }
}

class QuoteView {
  constructor() {
    this.el = h('blockquote');
    this.inner = new Sequence(this.el);
  }
  update(block) {
    this.inner.update(block.blocks);
  }
}

class ListView {
  constructor(block) {
    this.el = h(block.ordered ? 'ol' : 'ul', block.ordered && block.start !== 1 ? { start: String(block.start) } : {});
    this.items = [];
  }
  update(block) {
    this.el.classList.toggle('loose', block.loose);
    block.items.forEach((item, i) => {
      let view = this.items[i];
      if (view && view.key === item.key) return;
      if (!view || view.checked !== item.checked) {
        const el = h('li', item.checked === null ? {} : { class: 'task' });
        const content = item.checked === null ? el : h('div');
        if (content !== el) el.append(h('input', { type: 'checkbox', disabled: true, checked: item.checked, 'aria-label': item.checked ? 'done' : 'open' }), content);
        if (view) view.el.replaceWith(el);
        else this.el.append(el);
        view = this.items[i] = { el, checked: item.checked, inner: new Sequence(content) };
      }
      view.key = item.key;
      view.inner.update(item.blocks);
    });
    for (const view of this.items.splice(block.items.length)) view.el.remove();
  }
}

class TableView {
  constructor() {
    this.head = h('tr');
    this.body = h('tbody');
    this.rows = [];
    this.el = h('div', { class: 'table', tabindex: '0', role: 'region', 'aria-label': 'Table' }, h('table', {}, h('thead', {}, this.head), this.body));
  }
  update(block) {
    const cells = (tag, row) => block.align.map((align, i) => h(tag, align ? { class: align } : {}, renderInline(row.cells[i] ?? '', row.open)));
    if (this.headKey !== block.head.key) this.head.replaceChildren(...cells('th', block.head));
    this.headKey = block.head.key;
    block.rows.forEach((row, i) => {
      const view = this.rows[i] ?? (this.rows[i] = { el: this.body.appendChild(h('tr')), key: null });
      if (view.key === row.key) return;
      view.key = row.key;
      view.el.replaceChildren(...cells('td', row));
    });
    for (const view of this.rows.splice(block.rows.length)) view.el.remove();
  }
}

const VIEWS = {
  paragraph: () => new TextView('p'),
  heading: (block) => new TextView('h' + block.level),
  rule: () => ({ el: h('hr'), update() {} }),
  code: (block) => new CodeView(block),
  quote: () => new QuoteView(),
  list: (block) => new ListView(block),
  table: () => new TableView(),
};

class Sequence {
  constructor(el) {
    this.el = el;
    this.views = [];
  }
  update(blocks) {
    blocks.forEach((block, i) => {
      let view = this.views[i];
      if (view && view.key === block.key) return;
      if (!view || view.kind !== block.kind) {
        const made = VIEWS[block.type](block);
        if (view) view.el.replaceWith(made.el);
        else this.el.append(made.el);
        view = this.views[i] = made;
        view.kind = block.kind;
      }
      view.key = block.key;
      view.update(block);
    });
    for (const view of this.views.splice(blocks.length)) view.el.remove();
  }
  // The first n views are final: they stay in the page and are not looked at again.
  commit(n) {
    this.views.splice(0, n);
  }
}

// Shows a text that grows. Blocks that later text cannot change are parsed once.
export class Markdown {
  constructor(el) {
    this.el = el;
    this.reset();
  }
  reset() {
    this.el.replaceChildren();
    this.sequence = new Sequence(this.el);
    this.text = '';
    this.done = 0;
  }
  // `open`: more may come, so that an unfinished emphasis or code span at the very end is shown as if it were closed.
  update(text, open = false) {
    if (!text.startsWith(this.text.slice(0, this.done))) this.reset();
    this.text = text;
    const lines = text.slice(this.done).split('\n');
    const blocks = parseBlocks(lines, open);
    this.sequence.update(blocks);
    // The last block may grow; while it is only the unfinished last line, the block before may turn out to hold it.
    let final = blocks.length - 1;
    if (final > 0 && blocks[final].from >= lines.length - 1) final -= 1;
    if (final <= 0) return;
    for (let i = 0; i < blocks[final].from; i++) this.done += lines[i].length + 1;
    this.sequence.commit(final);
  }
}
