"""What the page makes of Markdown: exact cases, every prefix as it streams, and texts made to be slow."""

# Text, and the HTML it becomes; code blocks without their frame.
CASES = [
    ("plain", "<p>plain</p>"),
    ("a\nb", "<p>a<br>b</p>"),
    ("a\n\nb", "<p>a</p><p>b</p>"),
    ("# One\n### Three ###\n#no", "<h1>One</h1><h3>Three</h3><p>#no</p>"),
    ("*a* **b** ***c*** ~~d~~ `e`", "<p><em>a</em> <strong>b</strong> <em><strong>c</strong></em> <s>d</s> <code>e</code></p>"),
    ("snake_case_word and 2*3*4 * 5", "<p>snake_case_word and 2<em>3</em>4 * 5</p>"),
    ("**a *b* c**", "<p><strong>a <em>b</em> c</strong></p>"),
    ("*a **b** c*", "<p><em>a <strong>b</strong> c</em></p>"),
    ("**open and *mixed** up*", "<p><em><em>open and <em>mixed</em></em> up</em></p>"),
    ("a ** b", "<p>a ** b</p>"),
    ("\\*not\\* \\`code\\`", "<p>*not* `code`</p>"),
    ("`` a`b ``", "<p><code>a`b</code></p>"),
    ("`*x*` *`y`*", "<p><code>*x*</code> <em><code>y</code></em></p>"),
    ("a & b &amp; &lt;b&gt; &#65; &#x42; &nosuch;", "<p>a &amp; b &amp; &lt;b&gt; A B &amp;nosuch;</p>"),
    ("x<br>y<BR/>z", "<p>x<br>y<br>z</p>"),
    ("<b>raw</b>", "<p>&lt;b&gt;raw&lt;/b&gt;</p>"),
    ("[a](https://e.org/x_(y)) b", '<p><a href="https://e.org/x_(y)">a</a> b</p>'),
    ('[**a**](<https://e.org/a> "t")', '<p><a href="https://e.org/a"><strong>a</strong></a></p>'),
    ("[a] [b](c d) [c]", "<p>[a] [b](c d) [c]</p>"),
    ("[a [b](https://e.org/) c](https://f.org/)", '<p>[a <a href="https://e.org/">b</a> c](<a href="https://f.org/">https://f.org/</a>)</p>'),
    ("[x](javascript:alert)", '<p><span class="dead-link">x</span></p>'),
    ("[x](/local)", '<p><span class="dead-link">x</span></p>'),
    ("![alt](https://e.org/i.png)", '<p><a href="https://e.org/i.png">alt</a></p>'),
    ("<mailto:a@b.org> (https://e.org/a). httpx", '<p><a href="mailto:a@b.org">mailto:a@b.org</a> (<a href="https://e.org/a">https://e.org/a</a>). httpx</p>'),
    ("\\(a_b_c\\) and $$x^*y^*$$ cost $5 and $6", '<p><span class="tex">\\(a_b_c\\)</span> and <span class="tex">$$x^*y^*$$</span> cost $5 and $6</p>'),
    ("a\n---\nb", "<p>a</p><hr><p>b</p>"),
    ("Title\n===\nb", "<h1>Title</h1><p>b</p>"),
    ("* * *\n- - -", "<hr><hr>"),
    ("- a\n- b\n  - c\n    - d\n- e", "<ul><li><p>a</p></li><li><p>b</p><ul><li><p>c</p><ul><li><p>d</p></li></ul></li></ul></li><li><p>e</p></li></ul>"),
    ("1. a\n  - b\n2. c", "<ol><li><p>a</p><ul><li><p>b</p></li></ul></li><li><p>c</p></li></ol>"),
    ("3. a\n4) b", '<ol start="3"><li><p>a</p></li></ol><ol start="4"><li><p>b</p></li></ol>'),
    ("- a\n\n- b", '<ul class="loose"><li><p>a</p></li><li><p>b</p></li></ul>'),
    ("- a\n\n  more\n\nout", '<ul class="loose"><li><p>a</p><p>more</p></li></ul><p>out</p>'),
    ("- a\nlazy\n- b", "<ul><li><p>a<br>lazy</p></li><li><p>b</p></li></ul>"),
    ("Text:\n- a\n* b", "<p>Text:</p><ul><li><p>a</p></li></ul><ul><li><p>b</p></li></ul>"),
    ("in 1999\n1998. was no list", "<p>in 1999<br>1998. was no list</p>"),
    ("- [x] done\n- [ ] open", '<ul><li class="task"><input type="checkbox"><div><p>done</p></div></li><li class="task"><input type="checkbox"><div><p>open</p></div></li></ul>'),
    ("> a\n> > b\n\nc", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><p>c</p>"),
    ("> - a\nb", "<blockquote><ul><li><p>a<br>b</p></li></ul></blockquote>"),
    ("```c\nint x;\n```\nafter", "<pre>int x;</pre><p>after</p>"),
    ("```\n<b>\n\n  two", "<pre>&lt;b&gt;\n\n  two</pre>"),
    ("~~~~\n~~~\n~~~~", "<pre>~~~</pre>"),
    ("1. do\n   ```sh\n   ls\n     -l\n   ```\n2. done", "<ol><li><p>do</p><pre>ls\n  -l</pre></li><li><p>done</p></li></ol>"),
    ("a\n\n    four\n     five", "<p>a</p><pre>four\n five</pre>"),
    ("| a | b |\n|:-:|--:|\n| 1 | 2 | 3 |\n| x \\| y |\nend", '<table><thead><tr><th class="center">a</th><th class="right">b</th></tr></thead><tbody>'
     '<tr><td class="center">1</td><td class="right">2</td></tr><tr><td class="center">x | y</td><td class="right"></td></tr><tr><td class="center">end</td><td class="right"></td></tr></tbody></table>'),
    ("a | b\n--- | ---\n1 | `2`", "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td><code>2</code></td></tr></tbody></table>"),
    ("a | b\n---", "<p>a | b</p><hr>"),
    ("tab\tin\r\nwindows", "<p>tab\tin<br>windows</p>"),
    ("", ""),
    (" \n\n ", ""),
]

# Longer texts whose every prefix is fed one after the other.
STREAMS = [
    "Intro **bold *both* end** `code` [link](https://e.org/).\n\n1. a\n\n2. b\n   - c\n\n     d\n\n3. e\n\nEnd\n===\n",
    "- a\n\n-\n\n- b\n\n* c\n1\n\n2. x\n\n> q\n> ```py\n> def f():\n>     '''doc\n>     more'''\n> ```\nlazy\n\nafter",
    "| a | b |\n|---|---|\n| 1 | **2** |\n| 3 | `4` |\n\nText\n\n```js\nconst a = `x\n${y}`; /* c\nd */ f(1)\n```\n\nmore ~~x~~\n---\nend",
    "```html\n<!-- a\nb --><p class=\"x\ny\">t</p>\n```\n```diff\n+a\n-b\n```\n```yaml\na: 1 # c\n- b\n```\n```\nopen",
]

# Patterns for quadratic or deeply recursive parsers, repeated to SLOW_LENGTH characters.
SLOW = ["*a ", "**a _b ", "*a **b ", "[", "[a](", "![](", "](", "`", "``a` ", "\\(", "$$ ", "<http://", "&", "> ", ">", "- ", "  - a\n", "> a\n", "1. a\n", "a|", "|a|b\n|-|-\n",
        "_", "~~a", "***", "a*", "* ", "-\t", "# ", "#", "(((", "https://a.b/((", "))", "\\", "\n", " ", "a  ", "\u0000", "\U0001f600*"]
SLOW_CODE = ["/*", "'", '"\\', "`", "#[", "@", "${", "<a ", "<!--", "$", "0x", "a(", "\\"]
SLOW_LENGTH = 150_000
SLOW_SECONDS = 4  # a quadratic step takes minutes

RENDER = """async ([text, streamed]) => {
  const { Markdown } = await import('./markdown.js');
  const el = document.createElement('div');
  const markdown = new Markdown(el);
  if (streamed) for (let n = 1; n < text.length; n++) markdown.update(text.slice(0, n), true);
  markdown.update(text);
  return el.innerHTML;
}"""

# The same without what is not of interest here.
PLAIN = """async (text) => {
  const { Markdown } = await import('./markdown.js');
  const el = document.createElement('div');
  new Markdown(el).update(text);
  for (const code of el.querySelectorAll('.code')) {
    const pre = document.createElement('pre');
    pre.textContent = code.querySelector('code').textContent;
    code.replaceWith(pre);
  }
  for (const table of el.querySelectorAll('.table')) table.replaceWith(table.firstChild);
  for (const each of el.querySelectorAll('*')) for (const name of each.getAttributeNames()) if (!['class', 'href', 'start', 'type'].includes(name) || each.getAttribute(name) === '') each.removeAttribute(name);
  return el.innerHTML;
}"""

TIME = """async ([text, streamed]) => {
  const { Markdown } = await import('./markdown.js');
  const el = document.createElement('div');
  const markdown = new Markdown(el);
  const start = performance.now();
  markdown.update(text, true);
  markdown.update(text);
  return performance.now() - start;
}"""


def check(page):
    wrong = []
    for text, wanted in CASES:
        got = page.evaluate(PLAIN, text)
        if got != wanted:
            wrong.append(f"{text!r}\n  is     {got}\n  wanted {wanted}")
    for text in STREAMS + [text for text, _ in CASES]:
        if page.evaluate(RENDER, [text, True]) != page.evaluate(RENDER, [text, False]):
            wrong.append(f"{text!r} differs when it is streamed")
    slow = [pattern * (SLOW_LENGTH // len(pattern)) for pattern in SLOW]
    slow += [f"```{language}\n" + (pattern * (SLOW_LENGTH // len(pattern))) for pattern in SLOW_CODE for language in ("js", "python", "rust", "html", "bash", "yaml")]
    slow += ["| a |\n| - " + " " * SLOW_LENGTH + "x", "[a](" + " " * SLOW_LENGTH, "# a" + " #" * (SLOW_LENGTH // 2) + "x", "```" + " " * SLOW_LENGTH + "`", "~" * SLOW_LENGTH + "`"]
    for text in slow:
        took = page.evaluate(TIME, [text, False]) / 1000
        if took > SLOW_SECONDS:
            wrong.append(f"{text[:20]!r}...: {took:.1f} s")
    assert not wrong, "\n".join(wrong)
