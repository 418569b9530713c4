// How one message looks, and the buttons below it.
import { copyButton, h, icon, iconButton } from './dom.js';
import { Markdown } from './markdown.js';

const LONG_LINES = 24;
const LONG_TEXT = 2400;

export const sendsOnEnter = (event) => event.key === 'Enter' && !event.shiftKey && !event.isComposing && !matchMedia('(pointer: coarse) and (hover: none)').matches;

const grouped = (n) => n.toLocaleString('en').replaceAll(',', '\u202f');

export function seconds(ms) {
  if (ms < 995) return `${Math.round(ms)}\u00a0ms`;
  return ms < 59_500 ? `${(ms / 1000).toFixed(ms < 9950 ? 1 : 0)}\u00a0s` : `${Math.floor(ms / 60_000)}\u00a0min ${Math.round((ms % 60_000) / 1000)}\u00a0s`;
}

// The figures below an answer: [text, explanation] each.
function figures(stats) {
  const list = [];
  if (stats.tokens > 0) list.push([stats.tokens === 1 ? '1 token' : `${grouped(stats.tokens)} tokens`, 'Length of the answer, thinking included']);
  if (stats.speed > 0) list.push([`${stats.speed.toFixed(stats.speed < 100 ? 1 : 0)} tok/s`, 'Tokens a second while the answer was written']);
  if (stats.first > 0) list.push([`first after ${seconds(stats.first)}`, 'Time from sending to the first token']);
  if (stats.prompt > 0) {
    const reused = stats.cached > 0 ? `${grouped(stats.cached)} of ${grouped(stats.prompt)} prompt tokens reused` : `${grouped(stats.prompt)} prompt tokens`;
    list.push([reused, 'Prompt tokens that the server had computed before']);
  }
  const full = stats.context > 0 ? (stats.prompt + stats.tokens) / stats.context : 0;
  if (full >= 0.75) list.push([`context ${Math.min(100, Math.round(full * 100))} % full`, `The model sees at most ${grouped(stats.context)} tokens`]);
  return list;
}

class MessageView {
  constructor(chat, node, actions) {
    this.chat = chat;
    this.node = node;
    this.actions = actions;
    this.buttons = h('div', { class: 'buttons' });
  }
  // ‹ 1/2 › where there is more than one branch here.
  switcher() {
    const all = this.chat.siblings(this.node);
    if (all.length < 2) return null;
    const at = all.indexOf(this.node);
    const step = (name, label, to) => iconButton(name, label, () => this.actions.show(all[to], label), { disabled: to < 0 || to >= all.length });
    return h('div', { class: 'switcher', role: 'group', 'aria-label': 'Branches' },
      step('left', 'Previous branch', at - 1), h('span', { 'aria-live': 'polite' }, `${at + 1}/${all.length}`), step('right', 'Next branch', at + 1));
  }
}

export class UserView extends MessageView {
  constructor(chat, node, actions) {
    super(chat, node, actions);
    this.bubble = h('div', { class: 'bubble' });
    this.el = h('article', { class: 'message user', 'aria-label': 'You' }, this.bubble, this.buttons);
    this.update();
  }
  update() {
    const { content } = this.node;
    const text = h('div', { class: 'text' }, content);
    this.bubble.replaceChildren(text);
    if (content.length > LONG_TEXT || content.split('\n', LONG_LINES + 1).length > LONG_LINES) {
      text.classList.add('folded');
      const more = h('button', { type: 'button', class: 'link-button', 'aria-expanded': 'false', onclick: () => {
        const folded = text.classList.toggle('folded');
        more.textContent = folded ? 'Show all' : 'Show less';
        more.setAttribute('aria-expanded', String(!folded));
      } }, 'Show all');
      this.bubble.append(more);
    }
    this.buttons.replaceChildren(...[this.switcher(), copyButton('Copy message', () => content),
      iconButton('edit', 'Edit message', () => this.edit())].filter(Boolean));
  }
  edit() {
    if (this.el.classList.contains('editing')) return;
    const area = h('textarea', { 'aria-label': 'Edit message', rows: '1' });
    area.value = this.node.content;
    const close = () => {
      this.el.classList.remove('editing');
      this.update();
      this.buttons.querySelector('[aria-label="Edit message"]')?.focus();
    };
    const send = () => {
      const text = area.value.trim();
      if (!text || !this.actions.edit(this.node, text)) return;
      this.el.classList.remove('editing');
    };
    area.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') {
        event.stopPropagation();
        close();
      } else if (sendsOnEnter(event)) {
        event.preventDefault();
        send();
      }
    });
    this.el.classList.add('editing');
    this.bubble.replaceChildren(area, h('div', { class: 'edit-row' },
      h('button', { type: 'button', class: 'button', onclick: close }, 'Cancel'), h('button', { type: 'button', class: 'button primary', onclick: send }, 'Send')));
    area.focus();
    area.setSelectionRange(area.value.length, area.value.length);
  }
}

export class AnswerView extends MessageView {
  constructor(chat, node, actions) {
    super(chat, node, actions);
    this.thinking = null;
    this.body = h('div', { class: 'markdown' });
    this.markdown = new Markdown(this.body);
    this.wait = h('div', { class: 'wait' }, h('span', { class: 'pulse' }), h('span', { class: 'wait-text' }));
    this.notice = h('div', { class: 'notices' });
    this.figures = h('div', { class: 'figures' });
    this.el = h('article', { class: 'message answer', 'aria-label': 'Answer' }, this.body, this.wait, this.notice, h('div', { class: 'foot' }, this.buttons, this.figures));
    this.update();
  }

  waiting(text) {
    this.wait.lastChild.textContent = text;
  }

  update() {
    const { node } = this;
    const streaming = !!node.streaming;
    this.el.classList.toggle('streaming', streaming);
    this.el.setAttribute('aria-busy', String(streaming));
    if (node.reasoning) this.updateThinking(streaming && !node.content);
    this.markdown.update(node.content, streaming);
    this.wait.hidden = !streaming || !!node.content || !!node.reasoning;
    if (streaming) {
      if (!this.wasStreaming) this.buttons.replaceChildren();
      this.wasStreaming = true;
      return;
    }
    this.wasStreaming = false;
    this.finish();
  }

  updateThinking(active) {
    const { node } = this;
    if (!this.thinking) {
      const label = h('span');
      const body = h('div', { class: 'markdown' });
      const el = h('details', { class: 'thinking', ontoggle: () => this.update() }, h('summary', {}, icon('right'), label), body);
      this.thinking = { el, label, markdown: new Markdown(body) };
      this.el.prepend(el);
    }
    const { el, label, markdown } = this.thinking;
    el.classList.toggle('active', active);
    label.textContent = active ? 'Thinking…' : node.thought >= 1000 ? `Thought for ${seconds(node.thought)}` : 'Thought for a moment';
    if (el.open) markdown.update(node.reasoning, active);  // folded: nobody sees it, so it costs nothing
  }

  finish() {
    const { node } = this;
    const notices = [];
    if (node.error) {
      notices.push(h('div', { class: 'error', role: 'alert' }, icon('alert'), h('span', {}, node.error),
        h('button', { type: 'button', class: 'button', onclick: () => this.actions.retry(node) }, 'Retry')));
    } else if (node.stopped) {
      notices.push(h('p', { class: 'note' }, 'Stopped.'));
    } else if (node.finish === 'length') {
      notices.push(h('p', { class: 'note' }, 'Ended at the length limit.'));
    } else if (!node.content) {
      notices.push(h('p', { class: 'note' }, 'The model ended without an answer.'));
    }
    this.notice.replaceChildren(...notices);
    this.buttons.replaceChildren(...[this.switcher(), node.content && copyButton('Copy answer', () => node.content),
      iconButton('again', 'Answer again', () => this.actions.regenerate(node))].filter(Boolean));
    this.figures.replaceChildren(...(node.stats ? figures(node.stats) : []).map(([text, title]) => h('span', { title }, text)));
  }
}
