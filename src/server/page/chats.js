// Conversations: a tree of messages each (an edit or another answer is a branch), kept in IndexedDB.
//
// As stored and exported: { id, title, created, updated, system, pick, messages: [{ id, parent, role, content, pick, ... }] }.
// A message's parent stands before it; `pick` says which of the children is shown.

const FORMAT = 'argent-conversations';
const VERSION = 1;
const MAX_MESSAGES = 100_000;
const TEXTS = ['reasoning', 'model', 'error', 'finish'];  // of an answer, where it has them
const ID = /^[A-Za-z0-9-]{1,64}$/;

export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

export function titleOf(text) {
  const line = text.trim().split('\n', 1)[0].replace(/\s+/g, ' ');
  return line.length > 60 ? line.slice(0, 59).trimEnd() + '…' : line || 'New chat';
}

export class Chat {
  constructor(system = '') {
    this.id = newId();
    this.title = '';
    this.created = this.updated = Date.now();
    this.system = system;
    this.root = { children: [], pick: 0 };
    this.nodes = new Map();
  }

  get empty() {
    return this.nodes.size === 0;
  }

  // A message below `parent` (null: the first one), which becomes the branch that is shown.
  add(parent, role, content, more = {}) {
    const node = { id: newId(), parent, role, content, created: Date.now(), children: [], pick: 0, ...more };
    const above = parent ?? this.root;
    above.children.push(node);
    above.pick = above.children.length - 1;
    this.nodes.set(node.id, node);
    this.updated = node.created;
    if (!this.title && role === 'user') this.title = titleOf(content);
    return node;
  }

  // Removes a message that nothing follows.
  drop(node) {
    const above = node.parent ?? this.root;
    above.children.splice(above.children.indexOf(node), 1);
    above.pick = Math.max(0, Math.min(above.pick, above.children.length - 1));
    this.nodes.delete(node.id);
  }

  siblings(node) {
    return (node.parent ?? this.root).children;
  }

  show(node) {
    (node.parent ?? this.root).pick = this.siblings(node).indexOf(node);
  }

  // The messages on the branch that is shown, oldest first.
  path() {
    const path = [];
    for (let at = this.root; at.children.length;) path.push((at = at.children[at.pick]));
    return path;
  }

  // What the model is sent to answer a message.
  context(node) {
    const branch = [];
    for (let at = node; at; at = at.parent) if (at.content) branch.push(at);
    const messages = this.system.trim() ? [{ role: 'system', content: this.system }] : [];
    for (const { role, content } of branch.reverse()) {
      const last = messages[messages.length - 1];
      // Behind a failed answer two questions meet; most chat templates want roles to alternate.
      if (last?.role === role) last.content += '\n\n' + content;
      else messages.push({ role, content });
    }
    return messages;
  }

  toJSON() {
    const { id, title, created, updated, system, root } = this;
    const messages = Array.from(this.nodes.values(), (node) => {
      const message = { id: node.id, parent: node.parent?.id ?? null, role: node.role, content: node.content, created: node.created, pick: node.pick };
      for (const key of [...TEXTS, 'thought', 'stats']) if (node[key] !== undefined) message[key] = node[key];
      if (node.stopped || node.streaming) message.stopped = true;
      return message;
    });
    return { id, title, created, updated, system, pick: root.pick, messages };
  }

  // From what was stored or imported; null where it is no conversation. Only known fields of the right type are taken.
  static from(value) {
    if (typeof value !== 'object' || value === null || !ID.test(value.id) || !Array.isArray(value.messages)) return null;
    const text = (v, limit = Infinity) => (typeof v === 'string' ? v.slice(0, limit) : '');
    const number = (v, fallback = 0) => (Number.isFinite(v) ? v : fallback);
    const chat = new Chat(text(value.system));
    chat.id = value.id;
    chat.title = text(value.title, 200);
    chat.created = number(value.created, Date.now());
    chat.updated = number(value.updated, chat.created);
    for (const message of value.messages.slice(0, MAX_MESSAGES)) {
      const { id, parent, role, content } = message ?? {};
      if (!ID.test(id) || chat.nodes.has(id) || typeof content !== 'string' || (role !== 'user' && role !== 'assistant')) return null;
      const above = parent === null ? chat.root : chat.nodes.get(parent);
      if (!above) return null;
      const node = { id, parent: parent === null ? null : above, role, content, created: number(message.created), children: [], pick: number(message.pick) };
      for (const key of TEXTS) if (typeof message[key] === 'string') node[key] = message[key];
      if (message.stopped === true) node.stopped = true;
      if (Number.isFinite(message.thought)) node.thought = message.thought;
      if (typeof message.stats === 'object' && message.stats) {
        node.stats = Object.fromEntries(Object.entries(message.stats).filter(([key, v]) => /^[a-z]{1,20}$/.test(key) && Number.isFinite(v)).slice(0, 20));
      }
      above.children.push(node);
      chat.nodes.set(id, node);
    }
    chat.root.pick = number(value.pick);
    for (const node of [chat.root, ...chat.nodes.values()]) {
      if (!Number.isInteger(node.pick) || node.pick < 0 || node.pick >= node.children.length) node.pick = Math.max(0, node.children.length - 1);
    }
    return chat;
  }
}

export function exportChats(chats) {
  return JSON.stringify({ format: FORMAT, version: VERSION, exported: new Date().toISOString(), conversations: chats.map((chat) => chat.toJSON()) }, null, 1) + '\n';
}

// The conversations of an exported file. Throws an Error with one line for the reader.
export function importChats(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error('This file is not JSON.');
  }
  if (value?.format !== FORMAT || !Array.isArray(value.conversations)) throw new Error('This file holds no exported Argent conversations.');
  if (!(value.version <= VERSION)) throw new Error(`This file has version ${value.version}; this page reads up to ${VERSION}.`);
  const chats = value.conversations.map((each) => Chat.from(each));
  const bad = chats.indexOf(null);
  if (bad >= 0) throw new Error(`Conversation ${bad + 1} of this file is damaged; nothing was imported.`);
  return chats;
}

const done = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

// All conversations, in memory and in the browser's database. Where the database is missing or full, memory is what there
// is: `onproblem` is told once, and saving is tried again with every change.
export class Store {
  constructor({ onproblem, onother, busy }) {
    this.chats = new Map();
    this.onproblem = onproblem;
    this.busy = busy;  // whether an answer is being written into a conversation here
    this.timers = new Map();
    this.told = false;
    this.channel = typeof BroadcastChannel === 'undefined' ? null : new BroadcastChannel('argent');
    if (this.channel) this.channel.onmessage = (event) => this.reload(event.data?.id).then(onother, () => {});
  }

  async open() {
    try {
      const request = indexedDB.open('argent', 1);
      request.onupgradeneeded = () => request.result.createObjectStore('chats', { keyPath: 'id' });
      this.db = await done(request);
      this.db.onversionchange = () => this.db.close();
      for (const value of await done(this.table('readonly').getAll())) {
        const chat = Chat.from(value);
        if (chat) this.chats.set(chat.id, chat);
      }
    } catch (error) {
      this.problem(error);
    }
  }

  table(mode) {
    return this.db.transaction('chats', mode).objectStore('chats');
  }

  problem(error) {
    if (!this.told) this.onproblem(error);
    this.told = true;
  }

  // Another tab has written or deleted this one.
  async reload(id) {
    if (!this.db || typeof id !== 'string' || this.busy(id)) return null;
    const chat = Chat.from(await done(this.table('readonly').get(id)));
    if (chat) this.chats.set(id, chat);
    else this.chats.delete(id);
    return id;
  }

  sorted() {
    return [...this.chats.values()].sort((a, b) => b.updated - a.updated);
  }

  async save(chat) {
    clearTimeout(this.timers.get(chat.id));
    this.timers.delete(chat.id);
    if (this.chats.get(chat.id) !== chat) return;
    try {
      await done(this.table('readwrite').put(chat.toJSON()));
      this.told = false;
      this.channel?.postMessage({ id: chat.id });
    } catch (error) {
      this.problem(error);
    }
  }

  saveSoon(chat) {
    if (!this.timers.has(chat.id)) this.timers.set(chat.id, setTimeout(() => this.save(chat), 1000));
  }

  saveNow() {
    for (const id of [...this.timers.keys()]) this.save(this.chats.get(id));
  }

  async delete(id) {
    clearTimeout(this.timers.get(id));
    this.timers.delete(id);
    this.chats.delete(id);
    try {
      await done(this.table('readwrite').delete(id));
      this.channel?.postMessage({ id });
    } catch (error) {
      this.problem(error);
    }
  }

  // Takes what is new: a conversation that is here already in the same state is left alone, one in another state becomes a
  // second one. Returns how many came.
  async import(chats) {
    let count = 0;
    for (const chat of chats) {
      const here = this.chats.get(chat.id);
      if (here && JSON.stringify(here.toJSON()) === JSON.stringify(chat.toJSON())) continue;
      if (here) chat.id = newId();
      this.chats.set(chat.id, chat);
      await this.save(chat);
      count++;
    }
    return count;
  }
}
