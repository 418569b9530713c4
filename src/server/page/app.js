// The page: which conversation is shown, what is being answered, and the keys that work everywhere.
import { ApiError, chat as chatStream, listModels } from './api.js';
import { Chat, Store, exportChats, importChats } from './chats.js';
import { $, announce, download, h, setIcon, toast } from './dom.js';
import { AnswerView, UserView, sendsOnEnter } from './message.js';
import { Settings, askKey, openSettings, themeButton } from './settings.js';
import { Sidebar } from './sidebar.js';

const NEAR = 60;            // pixels from the end that count as being there
const NARROW = matchMedia('(max-width: 820px)');
const STARTERS = [
  'Explain how a hash table works, with a small example in Python.',
  'Write a polite reply that declines an invitation.',
  'What are good questions to ask before buying a used bicycle?',
];

const settings = new Settings();
const store = new Store({
  busy: (id) => runs.has(id),
  onproblem: (error) => toast(error?.name === 'QuotaExceededError'
    ? 'The browser has no room left: new messages last until this page closes. Export or delete conversations.'
    : 'The browser keeps no data for this page: conversations last until it closes. Export them in the settings.', null, 20),
  onother: (id) => {
    if (!id) return;
    if (current.id === id) open(store.chats.get(id) ?? new Chat(settings.system), { keepScroll: true });
    sidebar.update();
  },
});

let current = new Chat(settings.system);
let views = [];                // of the messages shown, in order
const runs = new Map();        // answers being written, by conversation: { node, controller, view }
let models = [];
let pinned = true;             // the reader is at the end and wants to stay there

// ---- showing -------------------------------------------------------------------------------------------------------------

const scroller = $('scroll');

const atEnd = () => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < NEAR;

function toEnd() {
  if (pinned) scroller.scrollTop = scroller.scrollHeight;
}

function pin(value) {
  pinned = value;
  $('latest').hidden = pinned;
}

// Only the reader's own movement lets go of the end: text that grows must not.
let lastTop = 0;
scroller.addEventListener('scroll', () => {
  if (scroller.scrollTop < lastTop - 2 && !atEnd()) pin(false);
  else if (atEnd()) pin(true);
  lastTop = scroller.scrollTop;
}, { passive: true });
scroller.addEventListener('wheel', (event) => {
  if (event.deltaY < 0 && scroller.scrollHeight > scroller.clientHeight) pin(false);
}, { passive: true });
new ResizeObserver(toEnd).observe($('log'));
new ResizeObserver(toEnd).observe(scroller);

const actions = {
  show(node, label) {
    current.show(node);
    store.save(current);
    pin(false);
    render();
    const view = views.find((v) => v.node === node);
    (view?.buttons.querySelector(`[aria-label="${label}"]:not(:disabled)`) ?? view?.buttons.querySelector('.switcher button:not(:disabled)'))?.focus();
    pin(atEnd());
  },
  edit(node, text) {
    if (runs.has(current.id)) return false;
    answer(current, current.add(node.parent, 'user', text));
    return true;
  },
  regenerate(node) {
    if (!runs.has(current.id)) answer(current, node.parent);
  },
  retry(node) {
    if (runs.has(current.id)) return;
    if (!node.content && !node.children.length) current.drop(node);
    answer(current, node.parent);
  },
};

// Brings the views in line with the branch that is shown; those that stay keep their nodes.
function render() {
  const path = current.path();
  let same = 0;
  while (same < path.length && same < views.length && views[same].node === path[same]) same++;
  for (const view of views.splice(same)) view.el.remove();
  for (const node of path.slice(same)) {
    const view = node.role === 'user' ? new UserView(current, node, actions) : new AnswerView(current, node, actions);
    views.push(view);
    $('log').append(view.el);
  }
  const run = runs.get(current.id);
  if (run) run.view = views.find((view) => view.node === run.node) ?? null;
  $('hello').hidden = path.length > 0;
  $('app').classList.toggle('fresh', path.length === 0);
  document.title = current.title ? `${current.title} · Argent` : 'Argent';
  showBusy();
}

function showBusy() {
  const busy = runs.has(current.id);
  const send = $('send');
  send.classList.toggle('stop', busy);
  setIcon(send, busy ? 'stop' : 'send');
  send.setAttribute('aria-label', busy ? 'Stop' : 'Send');
  send.title = busy ? 'Stop (Esc)' : 'Send (Enter)';
  send.disabled = !busy && !$('input').value.trim();
  $('log').classList.toggle('busy', busy);
}

function open(chat, { keepScroll = false, history: push = true } = {}) {
  current = chat;
  for (const view of views.splice(0)) view.el.remove();
  render();
  if (!keepScroll) {
    pin(true);
    toEnd();
  }
  const hash = chat.empty ? '' : '#' + chat.id;
  if (push && location.hash !== hash) history.pushState(null, '', hash || location.pathname + location.search);
  $('tune').classList.toggle('set', !!chat.system.trim());
  sidebar.update();
  if (NARROW.matches) showSide(false);
}

function newChat() {
  if (!current.empty) open(new Chat(settings.system));
  else if (NARROW.matches) showSide(false);
  $('input').focus();
}

addEventListener('popstate', () => {
  const chat = store.chats.get(location.hash.slice(1));
  if (chat !== current) open(chat ?? new Chat(settings.system), { history: false });
});

// ---- answering -----------------------------------------------------------------------------------------------------------

function figuresOf(run, usage, timings) {
  const stats = {};
  const put = (name, value) => {
    if (Number.isFinite(value) && value >= 0) stats[name] = Math.round(value * 100) / 100;
  };
  const took = (run.last - run.first) / 1000;
  const tokens = usage?.completion_tokens ?? timings?.predicted_n ?? run.pieces;
  put('tokens', tokens);
  put('speed', timings?.predicted_per_second ?? (took > 0 && tokens > 1 ? (tokens - 1) / took : NaN));
  if (run.first) put('first', run.first - run.start);
  put('prompt', usage?.prompt_tokens ?? (timings ? timings.prompt_n + (timings.cache_n ?? 0) : NaN));
  put('cached', usage?.prompt_tokens_details?.cached_tokens ?? timings?.cache_n);
  put('context', models.find((model) => model.id === run.node.model)?.context || NaN);
  return stats;
}

// Shows what has come. A frame that took long is followed by a longer pause, so that drawing never takes most of the time.
function scheduleDraw(run) {
  if (run.drawing) return;
  run.drawing = setTimeout(() => {
    run.drawing = 0;
    if (!run.view) return;
    const start = performance.now();
    run.view.update();
    toEnd();
    run.pause = Math.max(30, 3 * (performance.now() - start));
  }, run.pause);
}

function take(run, delta) {
  const now = performance.now();
  const { node } = run;
  const reasoning = typeof delta.reasoning_content === 'string' ? delta.reasoning_content : typeof delta.reasoning === 'string' ? delta.reasoning : '';
  const content = typeof delta.content === 'string' ? delta.content : '';
  if (!reasoning && !content) return;
  run.first ||= now;
  run.last = now;
  run.pieces++;
  if (reasoning) node.reasoning = (node.reasoning ?? '') + reasoning;
  if (content && node.reasoning && !node.content) node.thought = Math.round(now - run.first);
  node.content += content;
  store.saveSoon(run.chat);
  scheduleDraw(run);
}

// Has the model answer a message with a new branch below it.
async function answer(chat, question) {
  const node = chat.add(question, 'assistant', '', { model: settings.model, streaming: true });
  const run = { chat, node, controller: new AbortController(), view: null, start: performance.now(), first: 0, last: 0, pieces: 0, drawing: 0, pause: 0 };
  runs.set(chat.id, run);
  store.chats.set(chat.id, chat);
  store.save(chat);
  if (chat === current) {
    pin(true);
    render();
    toEnd();
    const hash = '#' + chat.id;
    if (location.hash !== hash) history.pushState(null, '', hash);
  }
  sidebar.update();
  watchModels();
  let usage = null;
  let timings = null;
  try {
    const messages = chat.context(question);
    for (let tries = 0; ; tries++) {
      try {
        for await (const chunk of chatStream({ model: settings.model || undefined, messages, ...settings.sampling }, run.controller.signal)) {
          const choice = chunk.choices?.[0];
          if (choice?.delta) take(run, choice.delta);
          if (choice?.finish_reason) node.finish = choice.finish_reason;
          if (chunk.usage) usage = chunk.usage;
          if (chunk.timings) timings = chunk.timings;
        }
        break;
      } catch (error) {
        if (error.status !== 401 || tries === 3 || !(await askKey(tries ? 'The server refused this key.' : 'This server wants an API key.'))) throw error;
        run.start = performance.now();
      }
    }
  } catch (error) {
    if (run.controller.signal.aborted) node.stopped = true;
    else node.error = error instanceof ApiError ? error.message : `Something went wrong in this page: ${error.message}`;
  }
  clearTimeout(run.drawing);
  delete node.streaming;
  if (run.first) node.stats = figuresOf(run, usage, timings);
  if (node.reasoning && !node.thought && run.first) node.thought = Math.round(run.last - run.first);
  chat.updated = Date.now();
  runs.delete(chat.id);
  store.save(chat);
  if (chat === current) {
    showBusy();
    run.view?.update();
    toEnd();
    announce(node.error ? '' : node.stopped ? 'Stopped.' : `Answer: ${node.content.slice(0, 600)}`);
  } else if (store.chats.has(chat.id)) {
    toast(`“${chat.title}” ${node.error ? 'failed' : 'is answered'}.`, { label: 'Open', run: () => open(chat) });
  }
  sidebar.update();
}

function stop() {
  runs.get(current.id)?.controller.abort();
}

function send() {
  const input = $('input');
  const text = input.value.trim();
  if (!text || runs.has(current.id)) return;
  input.value = '';
  grow();
  const path = current.path();
  const last = path[path.length - 1] ?? null;
  // An answer that failed without a word is not part of the conversation that follows.
  if (last?.role === 'assistant' && last.error && !last.content && !last.children.length) current.drop(last);
  const parent = current.path().at(-1) ?? null;
  answer(current, current.add(parent, 'user', text));
}

// ---- models --------------------------------------------------------------------------------------------------------------

let watching = 0;

function describe(model) {
  if (model.state === 'loading') return `loading${model.progress > 0 ? ` ${Math.round(model.progress * 100)} %` : ''}`;
  return model.state === 'unloaded' ? 'not loaded' : model.state === 'loaded' ? '' : model.state;
}

function showModels() {
  const picker = $('model');
  const chosen = models.find((model) => model.id === settings.model);
  const dot = h('span', { class: 'dot ' + (/^[a-z]+$/.test(chosen?.state ?? '') ? chosen.state : 'none') });
  const state = chosen ? describe(chosen) : '';
  if (models.length > 1) {
    let select = picker.querySelector('select');
    const key = JSON.stringify(models);
    if (!select) {
      select = h('select', { 'aria-label': 'Model', onchange: () => {
        settings.model = select.value;
        settings.save();
        showModels();
      } });
      picker.replaceChildren(dot, h('span', { class: 'select' }, select));
    }
    if (select.dataset.key !== key) {
      select.replaceChildren(...models.map((model) => h('option', { value: model.id }, model.id + (describe(model) && ` (${describe(model)})`))));
      select.dataset.key = key;
    }
    select.value = settings.model;
    picker.firstChild.replaceWith(dot);
  } else {
    picker.replaceChildren(dot, h('span', { class: 'model-name' }, chosen?.id ?? 'No model'), h('span', { class: 'state' }, state));
  }
  if (chosen) $('hello-model').textContent = `You are talking to ${chosen.id}. Conversations stay in this browser.`;
  const run = runs.get(current.id);
  if (run?.view && !run.first) run.view.waiting(chosen?.state === 'loading' ? `The model is ${state}` : '');
}

function offline(text) {
  $('model').replaceChildren(h('span', { class: 'dot offline' }), h('span', { class: 'model-name' }, text));
}

// Asks for the models, and again soon while something may change.
async function watchModels() {
  clearTimeout(watching);
  let next = 30_000;
  try {
    models = await listModels();
    if (!models.some((model) => model.id === settings.model)) settings.model = (models.find((model) => model.state === 'loaded') ?? models[0])?.id ?? '';
    showModels();
    if (models.some((model) => model.state === 'loading') || [...runs.values()].some((run) => !run.first)) next = 1000;
  } catch (error) {
    if (error.status === 401) {
      offline('API key needed');
      if (!runs.size && (await askKey(knocked ? 'The server refused this key.' : 'This server wants an API key.'))) next = 0;
      knocked = true;
    } else {
      offline(error.status ? error.message : 'Server not reached');
      next = 5000;
    }
    if (error.status === 401 && next) return;
  }
  clearTimeout(watching);
  watching = setTimeout(() => (document.hidden ? (watching = 0) : watchModels()), next);
}
let knocked = false;

// ---- controls ------------------------------------------------------------------------------------------------------------

function grow() {
  const input = $('input');
  input.style.height = 'auto';
  input.style.height = Math.min(input.scrollHeight, innerHeight * 0.4) + 'px';
  showBusy();
}

function showSide(shown) {
  $('app').classList.toggle('side-shown', NARROW.matches && shown);
  if (!NARROW.matches) $('app').classList.toggle('side-hidden', !shown);
  $('menu').setAttribute('aria-expanded', String(shown));
  $('side').inert = !shown;
}

const sideShown = () => $('menu').getAttribute('aria-expanded') === 'true';

const sidebar = new Sidebar({ store, current: () => current, busy: (id) => runs.has(id) }, {
  open: (chat) => (open(chat), NARROW.matches || $('input').focus()),
  rename: (chat, title) => {
    chat.title = title;
    store.save(chat);
    if (chat === current) document.title = `${title} · Argent`;
  },
  remove: (chat) => {
    runs.get(chat.id)?.controller.abort();
    store.delete(chat.id);
    if (chat === current) open(new Chat(settings.system));
    else sidebar.update();
    toast(`Deleted “${chat.title}”.`, { label: 'Undo', run: () => {
      store.chats.set(chat.id, chat);
      store.save(chat);
      open(chat);
    } }, 8);
  },
});

function showSettings() {
  openSettings(settings, current, {
    setSystem: (text) => {
      current.system = text;
      $('tune').classList.toggle('set', !!text.trim());
      if (!current.empty) store.saveSoon(current);
    },
    exportAll: () => download(`argent-conversations-${new Date().toISOString().slice(0, 10)}.json`, exportChats(store.sorted())),
    exportOne: () => download(`argent-conversation-${current.id.slice(0, 8)}.json`, exportChats([current])),
    importFile: async (file) => {
      try {
        const count = await store.import(importChats(await file.text()));
        $('settings').close();
        toast(count ? `Imported ${count} conversation${count > 1 ? 's' : ''}.` : 'These conversations are all here already.');
      } catch (error) {
        $('settings').close();
        toast(error.message, null, 12);
      }
      sidebar.update();
    },
    removeAll: () => {
      const all = store.sorted();
      for (const chat of all) {
        runs.get(chat.id)?.controller.abort();
        store.delete(chat.id);
      }
      open(new Chat(settings.system));
      toast(`Deleted ${all.length} conversation${all.length === 1 ? '' : 's'}.`, { label: 'Undo', run: () => store.import(all).then(() => sidebar.update()) }, 15);
    },
    keyChanged: watchModels,
  });
}

function editLast() {
  const view = views.findLast((each) => each.node.role === 'user');
  if (view && !runs.has(current.id)) view.edit();
  return !!view;
}

$('composer').addEventListener('submit', (event) => {
  event.preventDefault();
  if (runs.has(current.id)) stop();
  else send();
});
$('composer').addEventListener('mousedown', (event) => {
  if (event.target.closest('button, textarea')) return;
  event.preventDefault();
  $('input').focus();
});
$('input').addEventListener('input', grow);
$('input').addEventListener('keydown', (event) => {
  if (sendsOnEnter(event)) {
    event.preventDefault();
    send();
  } else if (event.key === 'ArrowUp' && !$('input').value && editLast()) {
    event.preventDefault();
  }
});
addEventListener('keydown', (event) => {
  if (document.querySelector('dialog[open]') || event.isComposing) return;
  if (event.key === 'Escape') {
    if (NARROW.matches && sideShown()) showSide(false), $('menu').focus();
    else stop();
  } else if ((event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && event.key.toLowerCase() === 'k') {
    event.preventDefault();
    newChat();
  }
});
for (const id of ['new', 'new-phone']) $(id).addEventListener('click', newChat);
for (const id of ['settings-open', 'tune']) $(id).addEventListener('click', showSettings);
$('menu').addEventListener('click', () => showSide(!sideShown()));
$('scrim').addEventListener('click', () => showSide(false));
$('latest').addEventListener('click', () => {
  pin(true);
  toEnd();
  $('input').focus();
});
NARROW.addEventListener('change', () => showSide(!NARROW.matches));
addEventListener('pagehide', () => store.saveNow());
document.addEventListener('visibilitychange', () => {
  if (document.hidden) store.saveNow();
  else if (!watching) watchModels();
});

for (const text of STARTERS) {
  $('starters').append(h('button', { type: 'button', class: 'starter', onclick: () => {
    $('input').value = text;
    grow();
    send();
  } }, text));
}

themeButton($('theme'));
showSide(!NARROW.matches);
showBusy();
sidebar.update();
watchModels();
await store.open();
open(store.chats.get(location.hash.slice(1)) ?? current, { history: false });
if (!NARROW.matches) $('input').focus();
document.documentElement.dataset.ready = 'true';
