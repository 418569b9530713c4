// Small helpers around the DOM. Nothing here, or anywhere in the page, parses text as HTML.

// h('a', { class, href, onclick, ... }, children...): strings become text nodes, arrays (of any length, which arguments may not
// have) their elements; false and null children are left out.
export function h(tag, attributes = {}, ...children) {
  const el = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) el.addEventListener(name.slice(2), value);
    else if (typeof value === 'boolean') el.toggleAttribute(name, value);
    else if (value !== null && value !== undefined) el.setAttribute(name, value);
  }
  return add(el, children);
}

export function add(el, children) {
  for (const child of children) {
    if (Array.isArray(child)) add(el, child);
    else if (child !== null && child !== undefined && child !== false) el.append(child);
  }
  return el;
}

export function fill(el, children) {
  el.textContent = '';
  return add(el, children);
}

export const $ = (id) => document.getElementById(id);

// An icon of index.html's sprite.
export function icon(name) {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  svg.setAttribute('class', 'icon');
  svg.setAttribute('aria-hidden', 'true');
  const use = document.createElementNS('http://www.w3.org/2000/svg', 'use');
  use.setAttribute('href', '#i-' + name);
  svg.append(use);
  return svg;
}

export const setIcon = (button, name) => button.querySelector('use').setAttribute('href', '#i-' + name);

export const iconButton = (name, label, onclick, more = {}) =>
  h('button', { type: 'button', class: 'icon-button', title: label, 'aria-label': label, onclick, ...more }, icon(name));

// Browsers give the clipboard only to secure pages; a server on the local network is none, so there is the old way too.
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h('textarea', { class: 'sr-only', 'aria-hidden': 'true' });
    area.value = text;
    const focused = document.activeElement;
    (document.querySelector('dialog[open]') ?? document.body).append(area);
    area.select();
    const done = document.execCommand('copy');
    area.remove();
    focused?.focus();
    return done;
  }
}

export function copyButton(label, text) {
  const button = iconButton('copy', label, async () => {
    const done = await copyText(text());
    setIcon(button, done ? 'check' : 'alert');
    announce(done ? 'Copied' : 'The browser refused to copy');
    setTimeout(() => setIcon(button, 'copy'), 1500);
  });
  return button;
}

// Tells screen readers.
export function announce(text) {
  $('status').textContent = text;
}

// A line at the bottom for some seconds, with an optional action: { label, run }.
export function toast(text, action = null, seconds = 6) {
  const el = h('div', { class: 'toast' }, h('span', {}, text));
  const close = () => el.remove();
  if (action) el.append(h('button', { type: 'button', class: 'link-button', onclick: () => (close(), action.run()) }, action.label));
  el.append(iconButton('close', 'Dismiss', close));
  $('toasts').replaceChildren(el);
  announce(text);
  setTimeout(close, seconds * 1000);
}

export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
  const a = h('a', { href: url, download: name });
  document.body.append(a);
  a.click();
  a.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
