// The server's HTTP interface. Addresses are relative, so that the page also works below a path of a proxy.

const KEY = 'argent.key';

export class ApiError extends Error {
  constructor(message, status = 0, type = '') {
    super(message);
    this.status = status;
    this.type = type;
  }
}

let memoryKey = '';

export function apiKey() {
  try {
    return sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? memoryKey;
  } catch {
    return memoryKey;
  }
}

// Kept until the tab closes, or in this browser; an empty key forgets it.
export function setApiKey(key, remember) {
  memoryKey = key;
  try {
    sessionStorage.removeItem(KEY);
    localStorage.removeItem(KEY);
    if (key) (remember ? localStorage : sessionStorage).setItem(KEY, key);
  } catch {
    // storage is forbidden: the key lives as long as the page
  }
}

function errorOf(value, status) {
  const error = value?.error ?? value;
  const message = typeof error === 'string' ? error : error?.message ?? error?.detail;
  return new ApiError(String(message || `The server answered ${status}.`).slice(0, 4000), status, String(error?.type ?? ''));
}

async function call(path, options = {}) {
  const headers = {};
  const key = apiKey();
  // A header holds bytes: a key that was pasted with typographic quotes would throw here instead of being refused there.
  if (key) headers.authorization = 'Bearer ' + key.replace(/[^\x21-\x7e]/g, '');
  if (options.body) headers['content-type'] = 'application/json';
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: 'no-store', credentials: 'same-origin' });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError(`No answer from ${location.host}. Is the server running?`);
  }
  if (response.ok) return response;
  let value = null;
  const text = await response.text().catch(() => '');
  try {
    value = JSON.parse(text);
  } catch {
    value = { message: text.startsWith('<') ? '' : text.trim() };
  }
  throw errorOf(value, response.status);
}

export async function listModels() {
  const value = await (await call('v1/models')).json().catch(() => null);
  return (Array.isArray(value?.data) ? value.data : []).filter((model) => typeof model?.id === 'string').map((model) => ({
    id: model.id,
    state: model.state ?? 'loaded',
    progress: Number(model.progress) || 0,
    context: Number(model.context_length) || 0,
  }));
}

// The values of a stream of server-sent events, as they come.
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = [];   // pieces of an unfinished line
  let data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const lines = value.split('\n');
      rest.push(lines[0]);
      if (lines.length === 1) continue;
      lines[0] = rest.join('');
      rest = [lines.pop()];
      for (let line of lines) {
        if (line.endsWith('\r')) line = line.slice(0, -1);
        if (line.startsWith('data:')) {
          data.push(line.slice(line[5] === ' ' ? 6 : 5));
        } else if (line === '' && data.length) {
          yield data.join('\n');
          data = [];
        }
      }
    }
    if (data.length) yield data.join('\n');
  } finally {
    reader.cancel().catch(() => {});
  }
}

// Sends a conversation; yields the chunks. Ends normally only when the answer is complete.
export async function* chat(body, signal) {
  const response = await call('v1/chat/completions', {
    method: 'POST',
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  let complete = false;
  try {
    for await (const text of events(response.body)) {
      if (text === '[DONE]') return;
      let chunk;
      try {
        chunk = JSON.parse(text);
      } catch {
        throw new ApiError('The server sent something that is no JSON.');
      }
      if (chunk?.error) throw errorOf(chunk, response.status);
      if (chunk?.choices?.[0]?.finish_reason) complete = true;
      yield chunk;
    }
  } catch (error) {
    if (error instanceof ApiError || error.name === 'AbortError') throw error;
    throw new ApiError('The connection was lost before the answer was complete.');
  }
  if (!complete) throw new ApiError('The answer ended before it was complete.');
}
