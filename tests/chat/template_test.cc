// The language, feature by feature. tests/chat/jinja_test.py holds all of it against jinja2; the texts here are what
// jinja2 3.1.6 gives in the environment of transformers.
#include "chat/render.h"

namespace argent::testing {
namespace {

constexpr const char* kChat =
    R"({"messages":[{"role":"system","content":"S"},{"role":"user","content":"U"},{"role":"assistant","content":"A"}],
        "xs":[3,1,2],"d":{"b":1,"a":[true,null]},"s":"héllo"})";

TEST(Template, Slices) {
  expect_all({
      {"{{ s[::-1] }}", "olléh", kChat},
      {"{{ xs[::-1] }}", "[2, 1, 3]", kChat},
      {"{{ s[1:] }}|{{ s[:-1] }}|{{ s[1:4:2] }}", "éllo|héll|él", kChat},
      {"{% for m in messages[1:] %}{{ m.role }},{% endfor %}", "user,assistant,", kChat},
      {"{% for m in messages[::-1] %}{{ m.role }},{% endfor %}", "assistant,user,system,", kChat},
      {"{{ xs[5:] }}{{ xs[-100:100] }}{{ range(10)[2:8:3]|list }}", "[][3, 1, 2][2, 5]", kChat},
      {"{{ s[-1] }}{{ s[10] }}{{ s[0] }}", "oh", kChat},
  });
}

TEST(Template, Loops) {
  expect_all({
      {"{% for x in xs %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor "
       "%}",
       "10TrueFalse3 21FalseFalse3 32FalseTrue3 ", kChat},
      {"{% for x in xs %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}", "<3>1 3<1>2 1<2> ", kChat},
      {"{% for x in xs %}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.cycle('a', 'b') }}{% endfor %}", "32a21b10a",
       kChat},
      {"{% for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% "
       "endfor %}",
       "013"},
      {"{% for x in xs if x > 1 %}{{ x }}{{ loop.last }}{% endfor %}", "3False2True", kChat},
      {"{% for a, b in [[1, 2], [3, 4]] if a %}{{ loop.nextitem }}{% endfor %}", "(3, 4)"},
      {"{% for x in [] %}{{ x }}{% else %}none{% endfor %}", "none"},
      {"{% for x in xs %}{% break %}{% else %}else runs when no pass came to its end{% endfor %}",
       "else runs when no pass came to its end", kChat},
      {"{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "b=1;a=[True, None];", kChat},
      {"{% for k in d %}{{ k }}{% endfor %}{% for c in s %}{{ c }}.{% endfor %}", "bah.é.l.l.o.", kChat},
      {"{% for a in [1, 2] %}{% for b in 'xy' %}{{ loop.index }}{% endfor %}{{ loop.index }} {% endfor %}", "121 122 "},
      {"{% for n in [1, [2, [3]]] recursive %}{{ n if n is number else loop(n) }}({{ loop.depth }}){% endfor %}",
       "1(1)2(2)3(3)(2)(1)"},
      {"{% for x in [1, 1, 2] %}{{ loop.changed(x) }} {% endfor %}", "True False True "},
  });
}

TEST(Template, Scopes) {
  expect_all({
      {"{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = 9 %}{{ x }}{% endfor %}{{ x }}", "19191"},
      {"{% set ns = namespace(found=false, n=0) %}{% for x in xs %}{% set ns.n = ns.n + x %}{% if x == 1 %}{% set "
       "ns.found "
       "= true %}{% endif %}{% endfor %}{{ ns.found }} {{ ns.n }}",
       "True 6", kChat},
      {"{% if true %}{% set x = 5 %}{% endif %}{{ x }}", "5"},
      {"{{ x }}{% set x = 2 %}{{ x }}", "72", R"({"x":7})"},
      {"{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% set x = 2 %}{{ m() }}", "2", R"({"x":7})"},
      {"{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}", "3False"},
      {"{% set a, b = 1, [2, 3] %}{{ a }}{{ b }}{% set c = 1, %}{{ c }}", "1[2, 3](1,)"},
      {"{% set t %}a{{ 1 + 1 }}{% endset %}[{{ t }}]{% set u | upper | replace('B', '_') %}abc{% endset %}{{ u }}",
       "[a2]A_C"},
      {"{% set ns = namespace() %}{% set ns.text %}x{% endset %}{{ ns.text }}{{ ns['text'] }}{{ ns.none is defined }}",
       "xxFalse"},
      {"{% generation %}{% set y = 1 %}{{ y }}{% endgeneration %}{{ y is defined }}", "1False"},
      {"{% set ns = namespace(a=1) %}{% set ns.b = [ns] %}{{ ns }}", "<Namespace {'a': 1, 'b': [<Namespace {...}>]}>"},
      {"{% filter upper %}a{{ 'b' }}{% endfilter %}", "AB"},
  });
}

TEST(Template, Macros) {
  expect_all({
      {"{% macro m(a, b='d', c=a) %}{{ a }}{{ b }}{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, 2, 3) }}{{ m(b=5, a=4) }}",
       "1d1;123;454;"},
      {"{% macro outer(x) %}{% macro inner(y) %}{{ x }}{{ y }}{% endmacro %}{{ inner(1) }}{{ inner(2) }}{% endmacro %}"
       "{{ outer('o') }}",
       "o1o2"},
      {"{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, z=4) }}", "1(2, 3){'z': 4}"},
      {"{% macro box(t) %}<{{ t }}>{{ caller('c') }}</{{ t }}>{% endmacro %}{% call(x) box('b') %}in {{ x }}{% endcall "
       "%}",
       "<b>in c</b>"},
      {"{% macro fact(n) %}{{ n if n < 2 else n ~ '*' ~ fact(n - 1) }}{% endmacro %}{{ fact(4) }}", "4*3*2*1"},
      {"{% macro m(a) %}{{ a is defined }}{% endmacro %}{{ m() }}{{ m(1) }}{{ m.name }}{{ m.arguments }}",
       "FalseTruem('a',)"},
      {"{% macro m() %}{% endmacro %}{{ m(1) }}", "error: t:1:34: macro 'm' takes not more than 0 arguments"},
      {"{% macro m() %}{% endmacro %}{{ m(a=1) }}", "error: t:1:34: macro 'm' takes no keyword argument 'a'"},
  });
}

TEST(Template, Whitespace) {
  expect_all({
      {"a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc"},
      {"a\n  {%- if true -%}\n  b\n  {%- endif -%}\nc", "abc"},
      {"a  {{- ' b ' -}}  c", "a b c"},
      {"  {%+ if true +%}\nx{% endif %}", "  \nx"},
      {"x  {% set a = 1 %}  y", "x    y"},
      {"{# c #}\n\n{#- d -#}\n z", "z"},
      {"{% raw %}{{ x }}{% if %}{% endraw %}\ny", "{{ x }}{% if %}y"},
      {"a\r\nb\rc\r\n", "a\nb\nc"},
      {"one newline goes\n\n", "one newline goes\n"},
      {"{% for x in [1,2] %}\n{{ x }}\n{% endfor %}\n", "1\n2\n"},
      {"{{ '}}' }}{{ {'a': {}} }}{{ \"{%\" }}", "}}{'a': {}}{%"},
  });
}

TEST(Template, Operators) {
  expect_all({
      {"{{ 1 + 2 * 3 - 4 }} {{ 7 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 2 ** 10 }} {{ 2 ** -1 "
       "}}",
       "3 3.5 3 -4 2 -2 1024 0.5"},
      {"{{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 1.5 // 1 }} {{ -7.5 % 2 }}", "64 4 1.0 0.5"},
      {"{{ 'a' ~ 1 ~ none ~ true ~ 1.0 ~ [1] }} {{ 'ab' * 2 }} {{ [1] + [2] }} {{ 'x' 'y' }}",
       "a1NoneTrue1.0[1] abab [1, 2] xy"},
      {"{{ 1 < 2 <= 2 != 3 }} {{ 1 == 1.0 == true }} {{ 'b' in 'abc' }} {{ 4 not in [1, 2] }} {{ 'b' in {'b': 1} }}",
       "True True True True True"},
      {"{{ none or 'x' }} {{ 0 and 1 }} {{ not [] }} {{ '' or 0 or none }}", "x 0 True None"},
      {"{{ 'y' if 1 else 'n' }}{{ 'y' if 0 }}{{ 1 if 0 else 2 if 0 else 3 }}", "y3"},
      {"{{ '%s-%05.1f-%x' % ('a', 3.14159, 255) }} {{ '{:>5}|{b!r}'.format('x', b='q') }}", "a-003.1-ff     x|'q'"},
      {"{{ 1e16 }} {{ 1e15 }} {{ 0.1 + 0.2 }} {{ 1e-5 }} {{ 100.0 }} {{ 1e22 }}",
       "1e+16 1000000000000000.0 0.30000000000000004 1e-05 100.0 1e+22"},
      {"{{ [1, 'a', \"it's\", none, true, 1.5, {'k': ()}] }}", "[1, 'a', \"it's\", None, True, 1.5, {'k': ()}]"},
      {"{{ 9223372036854775807 + 1 }}", "error: t:1:4: integers beyond 64 bits are not supported"},
      {"{{ 1 / 0 }}", "error: t:1:4: division by zero"},
      {"{{ 'a' + 1 }}", "error: t:1:4: '+' is not supported between str and int"},
  });
}

TEST(Template, Filters) {
  expect_all({
      {"{{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|list }}", "['U']", kChat},
      {"{{ messages|rejectattr('role', 'in', ['user', 'system'])|list|length }}", "1", kChat},
      {"{{ xs|sort }}{{ xs|sort(reverse=true)|join('-') }}{{ xs|sum }}{{ xs|min }}{{ xs|max }}{{ xs|first }}{{ xs|last "
       "}}",
       "[1, 2, 3]3-2-16133"
       "2",
       kChat},
      {"{{ d|dictsort }}{{ d|items|list }}{{ d|length }}{{ d|list }}",
       "[('a', [True, None]), ('b', 1)][('b', 1), ('a', [True, None])]2['b', 'a']", kChat},
      {"{{ '  x '|trim }}|{{ 'a-b c'|title }}|{{ 'ABC'|lower|capitalize }}|{{ 'aXbX'|replace('X', '_', 1) }}",
       "x|A-B C|Abc|a_bX"},
      {"{{ 'a\nb\n\nc'|indent(2) }}|{{ 'a\nb'|indent(1, true) }}", "a\n  b\n\n  c| a\n b"},
      {"{{ '42.9'|int }}{{ 'x'|int(7) }}{{ '0x1F'|int(0, 16) }} {{ 3.7|int }} {{ '1e3'|float }} {{ 2.5|round }} {{ "
       "-3|abs }}",
       "42731 3 1000.0 2.0 3"},
      {"{{ [1, 2, 3, 4, 5]|batch(2, 0)|list }}{{ ['b', 'A', 'b']|unique|list }}{{ 'abc'|reverse }}",
       "[[1, 2], [3, 4], [5, 0]]['b', 'A']cba"},
      {"{{ '<a>'|e }}{{ '<a>'|safe }}{{ none|string }}{{ none|default('d') }}{{ ''|default('d', true) }}{{ u|d('e') }}",
       "&lt;a&gt;<a>NoneNonede"},
      {"{{ ['a', 'B']|map('upper')|join }}{{ [{'n': 2}, {'n': 1}]|sort(attribute='n')|map(attribute='n')|list }}",
       "AB[1, 2]"},
      {"{{ [0, 1, 2, 3]|select('odd')|list }}{{ [0, '', 1]|reject|list }}{{ 'a b'|wordcount }}{{ "
       "'abcdefghijkl'|truncate(8) }}",
       "[1, 3][0, '']2abcdefghijkl"},
      {"{{ [{'c': 1, 'n': 'x'}, {'c': 2, 'n': 'y'}, {'c': 1, 'n': 'z'}]|groupby('c') }}",
       "[(1, [{'c': 1, 'n': 'x'}, {'c': 1, 'n': 'z'}]), (2, [{'c': 2, 'n': 'y'}])]"},
  });
}

TEST(Template, ToJson) {
  constexpr const char* kTool =
      R"({"t":{"name":"get","desc":"Größe <x> & 'y'","n":1.0,"big":1e20,"e":[],"o":{},"q":"a\"\\\n\u0001"}})";
  expect_all({
      {"{{ t|tojson }}",
       R"({"name": "get", "desc": "Größe <x> & 'y'", "n": 1.0, "big": 1e+20, "e": [], "o": {}, "q": "a\"\\\n\u0001"})",
       kTool},
      {"{{ {'b': [1, {'c': none}], 'a': true}|tojson(indent=2) }}",
       "{\n  \"b\": [\n    1,\n    {\n      \"c\": null\n    }\n  ],\n  \"a\": true\n}"},
      {"{{ {'b': 1, 'a': 'é😀'}|tojson(ensure_ascii=true, sort_keys=true) }}", R"({"a": "\u00e9\ud83d\ude00", "b": 1})"},
      {"{{ [1, {'a': 2}]|tojson(separators=(',', ':')) }}{{ {1: 2, none: 3, true: 4}|tojson }}",
       R"([1,{"a":2}]{"1": 4, "null": 3})"},
      {"{{ x|tojson }}", "error: t:1:6: Object of type Undefined is not JSON serializable"},
  });
}

TEST(Template, Tests) {
  expect_all({
      {"{{ 1 is odd }}{{ 'x' is string }}{{ {} is mapping }}{{ [] is sequence }}{{ 1 is number }}{{ none is none }}",
       "TrueTrueTrueTrueTrueTrue"},
      {"{{ true is integer }}{{ 1 is integer }}{{ 1.0 is float }}{{ true is boolean }}{{ 1 is true }}{{ 4 is "
       "divisibleby 2 }}",
       "FalseTrueTrueTrueFalseTrue"},
      {"{{ 'a' is in 'abc' }}{{ 3 is gt 2 }}{{ 3 is not eq(3) }}{{ 1 is iterable }}{{ 'A' is upper }}",
       "TrueTrueFalseFalseTrue"},
      {"{{ 'tojson' is filter }}{{ 'nope' is filter }}{{ range is callable }}{{ x is defined }}", "TrueFalseTrueFalse"},
  });
}

TEST(Template, Undefined) {
  expect_all({
      {"[{{ x }}{{ x|length }}{{ x|join }}{{ x|list }}{{ x|default('d') }}{{ x|upper }}{{ x|trim }}{{ x|first }}]",
       "[0[]d]"},
      {"{{ x is defined }}{{ x is none }}{{ x is string }}{{ x == y }}{{ x == none }}{{ not x }}{{ 1 in x }}",
       "FalseFalseFalseTrueFalseTrueFalse"},
      {"{% for a in x %}{{ a }}{% else %}empty{% endfor %}", "empty"},
      {"{{ d.nokey is defined }}{{ d.nokey }}{{ none.x is defined }}", "FalseFalse", R"({"d":{}})"},
      {"{{ x.y is defined }}", "error: t:1:5: 'x' is undefined"},
      {"{{ d.a.b }}", "error: t:1:7: 'dict object' has no attribute 'a'", R"({"d":{}})"},
      {"{{ n.strip() }}", "error: t:1:11: 'None' has no attribute 'strip'", R"({"n":null})"},
      {"{{ x + 1 }}", "error: t:1:4: 'x' is undefined"},
      {"{{ x() }}", "error: t:1:5: 'x' is undefined"},
      {"{{ x < 1 }}", "error: t:1:4: 'x' is undefined"},
  });
}

TEST(Template, Methods) {
  expect_all({
      {"{{ ' a '.strip() }}{{ 'xxaxx'.strip('x') }}{{ 'a,b'.split(',') }}{{ ' a  b '.split() }}{{ 'a.b.c'.rsplit('.', "
       "1) }}",
       "aa['a', 'b']['a', 'b']['a.b', 'c']"},
      {"{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith(('x', 'c')) }}{{ 'abcb'.find('b') }}{{ 'abc'.find('z') }}{{ "
       "'aXa'.count('a') }}",
       "TrueTrue1-12"},
      {"{{ 'hello world'.title() }}{{ 'ab'.replace('a', 'c') }}{{ '-'.join(['x', 'y']) }}{{ 'a\\nb'.splitlines() }}",
       "Hello Worldcbx-y['a', 'b']"},
      {"{{ {'a': 1}.get('a') }}{{ {}.get('x', 'd') }}{{ {}.get('x') }}{{ {'a': 1}.keys()|list }}{{ {'a': 1}.items() }}",
       "1dNone['a']dict_items([('a', 1)])"},
      {"{{ 'ΑΣ'.lower() }}{{ 'ß'.upper() }}{{ 'x'.zfill(3) }}{{ 'a</think>b'.split('</think>')[-1] }}", "αςSS00xb"},
      {"{{ [].append(1) }}", "error: t:1:13: access to attribute 'append' of 'list' object is unsafe"},
      {"{{ d.update({}) }}", "error: t:1:12: access to attribute 'update' of 'dict' object is unsafe", R"({"d":{}})"},
      {"[{{ ''.__class__ }}]", "[]"},
      {"{{ 'x'.encode() }}", "error: t:1:14: the method 'encode' of 'str' is not supported"},
  });
}

TEST(Template, Globals) {
  RenderOptions options;
  options.now = [] {
    std::tm tm{};
    tm.tm_year = 126, tm.tm_mon = 0, tm.tm_mday = 2, tm.tm_hour = 3;
    return tm;
  };
  EXPECT_EQ(text("{{ strftime_now('%d %b %Y %H') }}", "{}", options), "02 Jan 2026 03");
  expect_all({
      {"{{ range(3)|list }}{{ range(5, 0, -2)|list }}{{ dict(a=1) }}{{ dict([('x', 2)]) }}",
       "[0, 1, 2][5, 3, 1]{'a': 1}{'x': 2}"},
      {"{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{% set j = joiner('|') %}{{ j() }}x{{ "
       "j() }}y",
       "abax|y"},
      {"{{ raise_exception('Roles must alternate') }}", "error: t:1:19: Roles must alternate"},
      {"{{ raise_exception('two\\nlines') }}", "error: t:1:19: two lines"},
  });
}

TEST(Template, ErrorsAtLoad) {
  struct Bad {
    const char* source;
    const char* message;
    Code code = Code::invalid;
  };
  for (const Bad& bad : std::initializer_list<Bad>{
           {"a\nb{{ x | nofilter }}", "t:2:9: unknown filter 'nofilter'", Code::unsupported},
           {"{{ x is notest }}", "t:1:9: unknown test 'notest'", Code::unsupported},
           {"{% nosuch %}", "t:1:4: unknown tag 'nosuch'"},
           {"{% do x %}", "t:1:4: unknown tag 'do'"},
           {"{% include 'x' %}", "t:1:4: the tag 'include' is not supported", Code::unsupported},
           {"{% block a %}{% endblock %}", "t:1:4: the tag 'block' is not supported", Code::unsupported},
           {"{% if x %}a", "t:1:12: the template ends, but 'endif' is missing"},
           {"{% endif %}", "t:1:4: unexpected tag 'endif'"},
           {"é{{ 1 + }}", "t:1:9: unexpected '}}'"},
           {"{{ (1 }}", "t:1:7: unexpected '}', expected ')'"},
           {"{{ 'abc }}", "t:1:4: the string is not closed"},
           {"{{ a b }}", "t:1:6: expected '}}', got 'b'"},
           {"{# open", "t:1:3: the comment is not closed"},
           {"{% break %}", "t:1:4: 'break' outside of a loop"},
           {"{% for x in y %}{% macro m() %}{% continue %}{% endmacro %}{% endfor %}",
            "t:1:35: 'continue' outside of a loop"},
           {"{% set 1 = 2 %}", "t:1:8: cannot assign to this"},
           {"{% for x in y %}{% set loop = 1 %}{% endfor %}", "t:1:24: cannot assign to 'loop' inside of a loop"},
           {"{{ f(a=1, a=2) }}", "t:1:11: the argument 'a' is given twice"},
           {"{% macro m(a, a) %}{% endmacro %}", "t:1:15: two parameters 'a'"},
           {"{{ x ? y }}", "t:1:6: unexpected character '?'"},
           {"\xff", "t:1:1: the template is not valid UTF-8"},
       }) {
    auto t = Template::parse(bad.source, "t");
    ASSERT_FALSE(t) << bad.source;
    EXPECT_EQ(t.error().message, bad.message) << bad.source;
    EXPECT_EQ(t.error().code, bad.code) << bad.source;
  }
}

TEST(Template, ErrorsAtRunHavePositions) {
  auto rendered = render("line one\n  {{ messages[0].content.nothing.more }}", kChat);
  ASSERT_FALSE(rendered);
  EXPECT_EQ(rendered.error().message, "t:2:33: 'str object' has no attribute 'nothing'");
  EXPECT_EQ(rendered.error().code, Code::invalid);
}

TEST(Template, ReadsVariables) {
  auto t = Template::parse("{% set x = 1 %}{{ x }}{% for m in messages %}{{ m }}{{ tools }}{% endfor %}", "t");
  ASSERT_TRUE(t);
  EXPECT_TRUE(t->reads("messages"));
  EXPECT_TRUE(t->reads("tools"));
  EXPECT_FALSE(t->reads("x"));
  EXPECT_FALSE(t->reads("m"));
}

}  // namespace
}  // namespace argent::testing
