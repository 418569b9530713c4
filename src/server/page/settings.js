// What the reader chooses: kept in localStorage; and the two dialogs.
import { apiKey, setApiKey } from './api.js';
import { $, h, iconButton, setIcon } from './dom.js';

const STORED = 'argent.settings';

// name as the server wants it, label, least, most, step, explanation
const SAMPLING = [
  ['temperature', 'Temperature', 0, 5, 0.05, '0 always takes the likeliest token'],
  ['top_p', 'Top p', 0, 1, 0.01, 'keeps the likeliest tokens up to this share'],
  ['top_k', 'Top k', 0, 1_000_000, 1, 'keeps this many tokens; 0 keeps all'],
  ['min_p', 'Min p', 0, 1, 0.01, 'drops tokens below this part of the likeliest'],
  ['max_tokens', 'Longest answer', 1, 10_000_000, 1, 'in tokens'],
  ['seed', 'Seed', 0, 4_294_967_295, 1, 'the same seed draws the same answer'],
  ['presence_penalty', 'Presence penalty', -2, 2, 0.1, 'against tokens that were used'],
  ['frequency_penalty', 'Frequency penalty', -2, 2, 0.1, 'against tokens used often'],
  ['repeat_penalty', 'Repeat penalty', 0.1, 10, 0.05, '1 is none'],
];

export class Settings {
  constructor() {
    this.sampling = {};
    this.system = '';   // of new conversations
    this.model = '';
    try {
      const value = JSON.parse(localStorage.getItem(STORED)) ?? {};
      for (const [name, , least, most] of SAMPLING) {
        const v = value.sampling?.[name];
        if (typeof v === 'number' && v >= least && v <= most) this.sampling[name] = v;
      }
      if (typeof value.system === 'string') this.system = value.system;
      if (typeof value.model === 'string') this.model = value.model;
    } catch {
      // damaged or forbidden: the defaults
    }
  }
  save() {
    try {
      const { sampling, system, model } = this;
      localStorage.setItem(STORED, JSON.stringify({ sampling, system, model }));
    } catch {
      // full or forbidden: they last as long as the page
    }
  }
}

const THEMES = { system: 'Theme: as the system', light: 'Theme: light', dark: 'Theme: dark' };

export function themeButton(button) {
  const order = Object.keys(THEMES);
  const current = () => document.documentElement.dataset.theme ?? 'system';
  const show = () => {
    setIcon(button, current());
    button.title = THEMES[current()];
    button.setAttribute('aria-label', THEMES[current()]);
  };
  button.addEventListener('click', () => {
    const next = order[(order.indexOf(current()) + 1) % order.length];
    if (next === 'system') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      if (next === 'system') localStorage.removeItem('argent.theme');
      else localStorage.setItem('argent.theme', next);
    } catch {
      // not remembered
    }
    show();
  });
  show();
}

function head(dialog, id, title) {
  return h('header', { class: 'dialog-head' }, h('h2', { id }, title), iconButton('close', 'Close', () => dialog.close()));
}

function closeOnBackdrop(dialog) {
  dialog.addEventListener('mousedown', (event) => {
    if (event.target === dialog) dialog.close();
  });
}

function samplingField(settings, [name, label, least, most, step, hint]) {
  const id = 'sampling-' + name;
  const problem = h('span', { class: 'field-problem', id: id + '-problem' });
  const input = h('input', { id, type: 'text', inputmode: 'decimal', autocomplete: 'off', placeholder: 'default', 'aria-describedby': `${id}-hint ${id}-problem` });
  input.value = settings.sampling[name] ?? '';
  input.addEventListener('input', () => {
    const text = input.value.trim().replace(',', '.');
    const value = Number(text);
    const ok = text === '' || (Number.isFinite(value) && value >= least && value <= most && (step !== 1 || Number.isInteger(value)));
    input.setAttribute('aria-invalid', String(!ok));
    problem.textContent = ok ? '' : `${step === 1 ? 'A whole number' : 'A number'} from ${least} to ${most}`;
    if (!ok) return;
    if (text === '') delete settings.sampling[name];
    else settings.sampling[name] = value;
    settings.save();
  });
  return h('div', { class: 'field' }, h('label', { for: id }, label), input, h('span', { class: 'field-hint', id: id + '-hint' }, hint), problem);
}

// chat: the conversation shown. actions: setSystem(text), exportAll(), exportOne(), importFile(file), removeAll(), keyChanged()
export function openSettings(settings, chat, actions) {
  const dialog = $('settings');
  const system = h('textarea', { id: 'system', rows: '4', placeholder: 'None', 'aria-label': 'System prompt' });
  system.value = chat.system;
  const forNew = h('input', { type: 'checkbox', checked: settings.system !== '' && settings.system === chat.system });
  const keepSystem = () => {
    actions.setSystem(system.value);
    if (forNew.checked) settings.system = system.value;
    settings.save();
  };
  system.addEventListener('input', keepSystem);
  forNew.addEventListener('change', () => {
    settings.system = forNew.checked ? system.value : '';
    settings.save();
  });

  const fields = h('div', { class: 'fields' });
  const fill = () => fields.replaceChildren(...SAMPLING.map((row) => samplingField(settings, row)));
  fill();
  const reset = h('button', { type: 'button', class: 'link-button', onclick: () => {
    settings.sampling = {};
    settings.save();
    fill();
  } }, 'Back to the defaults');

  const file = h('input', { type: 'file', accept: '.json,application/json', class: 'sr-only', id: 'import-file', tabindex: '-1', 'aria-label': 'File to import' });
  file.addEventListener('change', () => {
    if (file.files[0]) actions.importFile(file.files[0]);
    file.value = '';
  });
  const button = (label, onclick, more = '') => h('button', { type: 'button', class: 'button ' + more, onclick }, label);
  const keys = [['Enter', 'send'], ['Shift Enter', 'new line'], ['Esc', 'stop'], ['Ctrl K', 'new chat'], ['↑', 'edit the last message'], ['F2, Del', 'rename, delete (in the list)']];

  dialog.replaceChildren(
    head(dialog, 'settings-title', 'Settings'),
    h('div', { class: 'dialog-body' },
      h('section', {}, h('h3', {}, 'System prompt'), h('p', {}, 'What the model is told before this conversation.'), system,
        h('label', { class: 'check' }, forNew, 'Also for new conversations')),
      h('section', {}, h('div', { class: 'section-head' }, h('h3', {}, 'Sampling'), reset),
        h('p', {}, 'Empty fields leave the choice to the server. They hold for all conversations.'), fields),
      h('section', {}, h('h3', {}, 'Conversations'), h('p', {}, 'They are kept in this browser only.'),
        h('div', { class: 'button-row' }, button('Export all', actions.exportAll), button('Export this one', actions.exportOne),
          button('Import…', () => file.click()), button('Delete all', () => { dialog.close(); actions.removeAll(); }, 'danger'), file)),
      h('section', {}, h('h3', {}, 'Server'), h('div', { class: 'button-row' },
        button(apiKey() ? 'Change API key' : 'Set API key', () => { dialog.close(); askKey('').then((given) => given && actions.keyChanged()); }),
        apiKey() && button('Forget API key', () => { setApiKey('', false); dialog.close(); }))),
      h('section', {}, h('h3', {}, 'Keyboard'), h('dl', { class: 'keys' },
        ...keys.flatMap(([key, what]) => [h('dt', {}, ...key.split(' ').map((k) => h('kbd', {}, k))), h('dd', {}, what)])))));
  if (!dialog.dataset.ready) closeOnBackdrop(dialog);
  dialog.dataset.ready = '1';
  dialog.showModal();
  dialog.querySelector('.dialog-body').scrollTop = 0;
}

let asking = null;

// Asks for the key that the server wants; resolves to whether one was given. Several callers share one dialog.
export function askKey(problem) {
  asking ??= new Promise((resolve) => {
    const dialog = $('key');
    const input = h('input', { type: 'password', id: 'key-input', autocomplete: 'current-password', 'aria-label': 'API key', spellcheck: 'false' });
    const remember = h('input', { type: 'checkbox' });
    let given = false;
    const form = h('form', { class: 'dialog-body', onsubmit: (event) => {
      event.preventDefault();
      if (!input.value.trim()) return;
      given = true;
      setApiKey(input.value.trim(), remember.checked);
      dialog.close();
    } },
    h('p', { role: problem ? 'alert' : null }, problem || 'The server checks it with every request.'), input,
    h('label', { class: 'check' }, remember, 'Remember in this browser'),
    h('div', { class: 'edit-row' }, h('button', { type: 'button', class: 'button', onclick: () => dialog.close() }, 'Cancel'), h('button', { type: 'submit', class: 'button primary' }, 'Continue')));
    dialog.replaceChildren(head(dialog, 'key-title', 'API key'), form);
    dialog.addEventListener('close', () => {
      asking = null;
      resolve(given);
    }, { once: true });
    dialog.showModal();
    input.focus();
  });
  return asking;
}
