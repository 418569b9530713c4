// Colours for code: one tokenizer driven by a row a language, a line at a time, so that a block can grow while it streams.
// tokenize(language, line, state) gives [[class, text], ...] and the state that the next line starts in.
// Classes: c comment, s string, n number, k keyword, l literal, f function, t type, a key or attribute, i inserted, d deleted.

const set = (text) => new Set(text.split(' '));
const C_COMMENTS = { line: ['//'], block: [['/*', '*/']] };
const LITERALS = set('true false null nil None True False undefined NaN nullptr NULL this self super');

const C_WORDS =
  'if else for while do switch case default break continue return goto sizeof typedef struct union enum const static ' +
  'extern inline volatile register void int char short long float double unsigned signed bool auto';
const JS_WORDS =
  'const let var function return if else for while do switch case default break continue new delete typeof instanceof ' +
  'in of class extends import export from as async await yield try catch finally throw void static get set interface ' +
  'type enum implements namespace declare readonly private public protected abstract satisfies keyof string number boolean any unknown never';

const FAMILIES = {
  js: { ...C_COMMENTS, quotes: '"\'', multi: ['`'], words: set(JS_WORDS) },
  python: {
    line: ['#'], multi: ['"""', "'''"], quotes: '"\'', prefix: /[rbfuRBFU]{1,2}(?=["'])/y, decorator: true,
    words: set('def class return if elif else for while break continue pass import from as with try except finally raise ' +
      'lambda yield async await in is not and or global nonlocal del assert match case print'),
  },
  c: {
    ...C_COMMENTS, quotes: '"\'', directive: true,
    words: set(C_WORDS + ' class namespace template typename using public private protected virtual override final new delete ' +
      'operator friend constexpr consteval constinit concept requires noexcept static_assert try catch throw explicit mutable ' +
      'size_t uint8_t uint16_t uint32_t uint64_t int8_t int16_t int32_t int64_t wchar_t co_await co_return co_yield decltype ' +
      'kernel device constant threadgroup __global__ __device__ __shared__ __host__ half'),
  },
  rust: {
    ...C_COMMENTS, quotes: '"', char: true, decorator: true,
    words: set('fn let mut const static struct enum trait impl for in if else match while loop break continue return pub use mod ' +
      'crate where as ref move async await dyn unsafe extern type u8 u16 u32 u64 usize i8 i16 i32 i64 isize f32 f64 bool char str'),
  },
  go: {
    ...C_COMMENTS, quotes: '"\'', multi: ['`'],
    words: set('func package import var const type struct interface map chan go defer return if else for range switch case default ' +
      'break continue fallthrough select goto string int int8 int16 int32 int64 uint uint8 uint16 uint32 uint64 byte rune float32 float64 bool error any'),
  },
  java: {
    ...C_COMMENTS, quotes: '"\'', multi: ['"""'], decorator: true,
    words: set('class interface enum record extends implements package import public private protected static final abstract ' +
      'void int long short byte char float double boolean if else for while do switch case default break continue return new ' +
      'try catch finally throw throws synchronized instanceof var val fun when object companion override open data sealed ' +
      'lateinit suspend is in as by init using namespace string bool decimal foreach out ref async await get set virtual ' +
      'readonly struct let func guard protocol extension inout defer mutating where internal some def trait yield match with given'),
  },
  shell: {
    line: ['#'], spaced: true, multi: ['"', "'"], variables: true,
    words: set('if then else elif fi for while until do done case esac in function return exit export local readonly set unset ' +
      'source alias echo cd sudo FROM RUN CMD COPY ADD ENTRYPOINT ENV ARG WORKDIR EXPOSE VOLUME USER LABEL'),
  },
  sql: {
    line: ['--'], block: [['/*', '*/']], quotes: '"\'', fold: true,
    words: set('select from where group by order having limit offset insert into values update set delete create table view ' +
      'index drop alter add column primary key foreign references unique not null default join left right inner outer full ' +
      'cross on using as and or in is like between exists case when then else end union all distinct with recursive returning ' +
      'begin commit rollback integer int bigint text varchar boolean real numeric date timestamp asc desc if over partition'),
  },
  json: { ...C_COMMENTS, quotes: '"', keys: true, words: new Set() },
  data: { line: ['#', ';'], spaced: true, quotes: '"\'', multi: ['"""', "'''"], lineKeys: true, words: set('yes no on off') },
  css: { block: [['/*', '*/']], quotes: '"\'', dashed: true, keys: true, words: set('important and not only from to') },
  lua: {
    line: ['--'], block: [['--[[', ']]']], quotes: '"\'',
    words: set('function end if then else elseif for while do repeat until return local break in and or not goto'),
  },
  ruby: {
    line: ['#'], quotes: '"\'',
    words: set('def end class module if elsif else unless while until for in do return yield begin rescue ensure raise case when ' +
      'then and or not require require_relative include extend attr_accessor attr_reader attr_writer puts lambda proc'),
  },
  php: {
    line: ['//', '#'], block: [['/*', '*/']], quotes: '"\'', variables: true,
    words: set('function class interface trait extends implements public private protected static final abstract if else elseif ' +
      'for foreach while do switch case default break continue return new try catch finally throw echo print use namespace as ' +
      'fn match const var global require include require_once include_once array string int float bool void'),
  },
  haskell: {
    line: ['--'], block: [['{-', '-}']], quotes: '"',
    words: set('module import where let in if then else case of do data type newtype class instance deriving infixl infixr infix qualified as'),
  },
  markup: { markup: true },
  diff: { diff: true },
};

const NAMES = {
  js: 'js javascript jsx ts typescript tsx mjs cjs node', python: 'python py python3 pycon', c: 'c h cpp c++ cc cxx hpp cuda cu metal objc objective-c glsl hlsl',
  rust: 'rust rs', go: 'go golang', java: 'java kotlin kt scala cs csharp c# swift dart groovy',
  shell: 'sh bash zsh shell console shellscript shell-session powershell ps1 dockerfile docker make makefile cmake fish', sql: 'sql sqlite postgresql postgres mysql psql',
  json: 'json jsonc json5 jsonl', data: 'yaml yml toml ini conf cfg properties env', css: 'css scss less', lua: 'lua', ruby: 'ruby rb',
  php: 'php', haskell: 'haskell hs elm', markup: 'html xml svg xhtml vue svelte', diff: 'diff patch',
};
const LANGUAGES = new Map();
for (const [family, names] of Object.entries(NAMES)) for (const name of names.split(' ')) LANGUAGES.set(name, FAMILIES[family]);

export const languageOf = (name) => LANGUAGES.get(name.toLowerCase()) ?? null;

const NUMBER = /0[xXbBoO][\da-fA-F_]+\w*|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?[\w%]*/y;
const IDENTIFIER = /[\p{L}_$][\p{L}\p{N}_$]*/uy;
const DASHED = /[\p{L}_$-][\p{L}\p{N}_$-]*/uy;
const CHAR = /'(?:\\[^']{1,10}|[^'\\])'/y;
const VARIABLE = /\$(?:\{[^}\n]{0,200}\}|[\w@#?*!]+)/y;
const LINE_KEY = /^(\s*(?:-\s+)?)([\w.-]+(?=\s*[:=])|\[[^\]]*\]+(?=\s*$))/;
const DIRECTIVE = /^\s*#\s*\w+/;
const DECORATOR = /@[\w.]+|#!?\[[^\]]*\]/y;
const TAG = /<\/?[A-Za-z!?][\w:.-]*/y;
const ATTRIBUTE = /[\w:@.#-]+/y;

function match(regex, line, at) {
  regex.lastIndex = at;
  return regex.exec(line)?.[0] ?? '';
}

// Where a string that starts at `from` ends: behind its first unescaped `end`, or -1.
function endOf(line, from, end, escapes) {
  for (let at = from; ;) {
    at = line.indexOf(end, at);
    if (at < 0 || !escapes) return at < 0 ? -1 : at + end.length;
    let slashes = 0;
    while (at - slashes > from && line[at - slashes - 1] === '\\') slashes++;
    if (slashes % 2 === 0) return at + end.length;
    at += 1;
  }
}

class Tokens {
  list = [];
  push(kind, text) {
    const last = this.list[this.list.length - 1];
    if (last && last[0] === kind) last[1] += text;
    else if (text) this.list.push([kind, text]);
  }
}

function tokenizeMarkup(line, state, out) {
  for (let at = 0; at < line.length;) {
    if (state) {
      if (state.end) {  // in a comment or in a quoted value
        const end = endOf(line, at, state.end, false);
        out.push(state.kind, line.slice(at, end < 0 ? undefined : end));
        if (end < 0) return state;
        state = state.back;
        at = end;
        continue;
      }
      const c = line[at];
      if (c === '>') state = null;
      if (c === '"' || c === "'") {
        out.push('s', c);
        state = { end: c, kind: 's', back: state };
        at += 1;
        continue;
      }
      const word = match(ATTRIBUTE, line, at);
      out.push(word ? 'a' : c === '>' || c === '/' ? 'k' : '', word || c);
      at += word.length || 1;
    } else if (line.startsWith('<!--', at)) {
      out.push('c', '<!--');
      state = { end: '-->', kind: 'c', back: null };
      at += 4;
    } else {
      const tag = line[at] === '<' ? match(TAG, line, at) : '';
      if (tag) state = {};
      out.push(tag ? 'k' : '', tag || line[at]);
      at += tag.length || 1;
    }
  }
  return state;
}

export function tokenize(language, line, state) {
  const out = new Tokens();
  if (language.markup) return [out.list, tokenizeMarkup(line, state, out)];
  if (language.diff) {
    out.push(/^(?:\+\+\+|---|diff |index )/.test(line) ? 'c' : line[0] === '+' ? 'i' : line[0] === '-' ? 'd' : line[0] === '@' ? 'k' : '', line);
    return [out.list, null];
  }
  let at = 0;
  if (!state && language.lineKeys) {
    const key = LINE_KEY.exec(line);
    if (key) {
      out.push('', key[1]);
      out.push('a', key[2]);
      at = key[0].length;
    }
  }
  if (!state && language.directive) {
    const directive = DIRECTIVE.exec(line)?.[0] ?? '';
    out.push('k', directive);
    at = directive.length;
  }
  scan: while (at < line.length) {
    if (state) {
      const end = endOf(line, at, state.end, state.kind === 's');
      out.push(state.kind, line.slice(at, end < 0 ? undefined : end));
      if (end < 0) return [out.list, state];
      state = null;
      at = end;
      continue;
    }
    for (const [open, end] of language.block ?? []) {
      if (!line.startsWith(open, at)) continue;
      out.push('c', open);
      at += open.length;
      state = { end, kind: 'c' };
      continue scan;
    }
    for (const open of language.line ?? []) {
      if (!line.startsWith(open, at) || (language.spaced && at > 0 && !/\s/.test(line[at - 1]))) continue;
      out.push('c', line.slice(at));
      return [out.list, null];
    }
    for (const quote of language.multi ?? []) {
      if (!line.startsWith(quote, at)) continue;
      out.push('s', quote);
      at += quote.length;
      state = { end: quote, kind: 's' };
      continue scan;
    }
    const c = line[at];
    if (language.quotes?.includes(c)) {
      const end = endOf(line, at + 1, c, true);
      const text = line.slice(at, end < 0 ? undefined : end);
      at += text.length;
      out.push(language.keys && /^\s*:/.test(line.slice(at, at + 8)) ? 'a' : 's', text);
      continue;
    }
    let text = language.char && c === "'" ? match(CHAR, line, at) : '';
    let kind = 's';
    if (!text && language.prefix) text = match(language.prefix, line, at);
    if (!text && language.variables && c === '$') [kind, text] = ['l', match(VARIABLE, line, at)];
    if (!text && language.decorator && (c === '@' || c === '#')) [kind, text] = ['t', match(DECORATOR, line, at)];
    if (!text && c >= '0' && c <= '9') [kind, text] = ['n', match(NUMBER, line, at)];
    if (!text) {
      text = match(language.dashed ? DASHED : IDENTIFIER, line, at);
      const next = line[at + text.length];
      if (LITERALS.has(text)) kind = 'l';
      else if (language.words.has(language.fold ? text.toLowerCase() : text)) kind = 'k';
      else if (language.keys && next === ':') kind = 'a';
      else if (next === '(') kind = 'f';
      else kind = /^\p{Lu}[\p{L}\p{N}]*\p{Ll}/u.test(text.slice(0, 40)) ? 't' : '';
    }
    out.push(text ? kind : '', text || c);
    at += text.length || 1;
  }
  return [out.list, state];
}
