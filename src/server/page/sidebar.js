// The list of conversations: by day, searched, renamed in place, deleted with a way back.
import { $, h, iconButton } from './dom.js';

const DAY = 86_400_000;

function dayOf(time) {
  const today = new Date().setHours(0, 0, 0, 0);
  if (time >= today) return 'Today';
  if (time >= today - DAY) return 'Yesterday';
  return time >= today - 6 * DAY ? 'Last seven days' : time >= today - 29 * DAY ? 'Last thirty days' : 'Older';
}

// Words around the first place where a message holds the text; '' where none does, null never matches the title either.
function excerpt(chat, wanted) {
  for (const node of chat.nodes.values()) {
    const at = node.content.toLowerCase().indexOf(wanted);
    if (at >= 0) return (at > 20 ? '…' : '') + node.content.slice(Math.max(0, at - 20), at + 60).replace(/\s+/g, ' ');
  }
  return '';
}

export class Sidebar {
  // actions: open(chat), rename(chat, title), remove(chat); state: store, current(), busy(id)
  constructor(state, actions) {
    this.state = state;
    this.actions = actions;
    this.list = $('chats');
    let timer = 0;
    $('search').addEventListener('input', () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.update(), 120);
    });
    this.list.addEventListener('keydown', (event) => this.move(event));
  }

  update() {
    if (this.list.querySelector('.rename')) return;  // not while a title is being typed
    const focused = document.activeElement?.closest?.('#chats li')?.dataset.id;
    const wanted = $('search').value.trim().toLowerCase();
    const parts = [];
    let day = '';
    let ul = null;
    for (const chat of this.state.store.sorted()) {
      const found = wanted ? excerpt(chat, wanted) : '';
      if (wanted && !found && !chat.title.toLowerCase().includes(wanted)) continue;
      if (dayOf(chat.updated) !== day) {
        day = dayOf(chat.updated);
        ul = h('ul', { 'aria-label': day });
        parts.push(h('h2', {}, day), ul);
      }
      ul.append(this.row(chat, found));
    }
    if (!parts.length) parts.push(h('p', { class: 'nothing' }, wanted ? 'Nothing found.' : 'Conversations will be listed here.'));
    this.list.replaceChildren(...parts);
    if (focused) this.list.querySelector(`li[data-id="${focused}"] .chat-open`)?.focus();
  }

  row(chat, found) {
    const current = chat === this.state.current();
    const open = h('button', { type: 'button', class: 'chat-open', 'aria-current': current ? 'page' : null, title: chat.title, onclick: () => this.actions.open(chat) },
      h('span', { class: 'chat-title' }, chat.title || 'New chat'), found && h('span', { class: 'chat-found' }, found));
    return h('li', { 'data-id': chat.id, class: (current ? 'current ' : '') + (this.state.busy(chat.id) ? 'busy' : '') }, open,
      h('div', { class: 'chat-buttons' },
        iconButton('edit', 'Rename', () => this.rename(chat)), iconButton('trash', 'Delete', () => this.actions.remove(chat))));
  }

  rename(chat) {
    const li = this.list.querySelector(`li[data-id="${chat.id}"]`);
    const input = h('input', { class: 'rename', 'aria-label': 'Title', maxlength: '200' });
    input.value = chat.title;
    let open = true;
    const close = (keep) => {
      if (!open) return;
      open = false;
      input.remove();
      const title = input.value.trim();
      if (keep && title && title !== chat.title) this.actions.rename(chat, title);
      this.update();
      this.list.querySelector(`li[data-id="${chat.id}"] .chat-open`)?.focus();
    };
    input.addEventListener('keydown', (event) => {
      if (event.key === 'Enter' && !event.isComposing) close(true);
      if (event.key === 'Escape') {
        event.stopPropagation();
        close(false);
      }
    });
    input.addEventListener('blur', () => close(true));
    li.replaceChildren(input);
    input.focus();
    input.select();
  }

  // Arrow keys walk through the list; Delete and F2 act on a conversation.
  move(event) {
    const at = event.target.closest('.chat-open');
    if (!at) return;
    const all = [...this.list.querySelectorAll('.chat-open')];
    const chat = this.state.store.chats.get(at.closest('li').dataset.id);
    if (event.key === 'ArrowDown') all[all.indexOf(at) + 1]?.focus();
    else if (event.key === 'ArrowUp') (all[all.indexOf(at) - 1] ?? $('search')).focus();
    else if (event.key === 'Delete') this.actions.remove(chat);
    else if (event.key === 'F2') this.rename(chat);
    else return;
    event.preventDefault();
  }
}
