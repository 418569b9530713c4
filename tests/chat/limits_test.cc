// A hostile template ends with one line, in little time and memory.
#include <chrono>

#include "chat/render.h"

namespace argent::testing {
namespace {

std::string repeated(const std::string& s, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += s;
  return out;
}

TEST(Limits, HostileTemplatesEnd) {
  // All of these would take minutes, gigabytes or the whole stack.
  const std::pair<const char*, const char*> cases[] = {
      {"{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}", "steps"},
      {"{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}", "more than"},
      {"{{ 'x' * 99999999999 }}", "memory"},
      {"{{ [1] * 99999999999 }}", "memory"},
      {"{{ ''.ljust(99999999999) }}", "memory"},
      {"{{ ('%99999999d' % 1)|length }}{{ '{:2000000000}'.format(1) }}", "memory"},
      {"{{ 'x'|center(9999999999) }}", "memory"},
      {"{{ 'a\\nb'|indent(2000000000) }}", "memory"},
      {"{% for i in range(100000) %}{{ 'x' * 100000 }}{% endfor %}", "writes more than"},
      {"{{ range(100001) }}", "more than 100000 items"},
      {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nests more than"},
      {"{% for x in [1] recursive %}{% if x %}{{ loop([x]) }}{% endif %}{% endfor %}", "nests more than"},
      {"{% macro m() %}{% set x %}{% filter upper %}{% for i in [1] if i %}{{ [{'k': m() ~ "
       "''}]|map(attribute='k')|join }}"
       "{% endfor %}{% endfilter %}{% endset %}{% endmacro %}{{ m() }}",
       "nests more than"},
      {"{% macro m(f) %}{% call(x) m(f=caller) %}{{ '%s'|format(f(1)) }}{% endcall %}{{ caller(1) }}{% endmacro %}{{ "
       "m() }}",
       "nests more than"},
      {"{% macro m(x) %}{% generation %}{% with y = x %}{{ '{}'.format(m(y)) if y is defined and not (y in []) else 0 "
       "}}"
       "{% endwith %}{% endgeneration %}{% endmacro %}{{ m(1) }}",
       "nests more than"},
      {"{% set ns = namespace(a=[1]) %}{% for i in range(190) %}{% set ns.a = ns.a|map('list')|map('join') %}{% endfor "
       "%}"
       "{{ ns.a|list }}",
       "more than"},
      {"{% set ns = namespace(a=[]) %}{% for i in range(100000) %}{% set ns.a = [ns.a] %}{% endfor %}",
       "nested more than"},
      {"{% set ns = namespace(a=[1]) %}{% for i in range(100000) %}{% set ns.a = ns.a|map('string') %}{% endfor %}",
       "nested more than"},
      {"{% set ns = namespace(a='x') %}{% for i in range(40) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a }}",
       "steps"},
      {"{% set ns = namespace(a='x') %}{% for i in range(40) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a|tojson "
       "}}",
       "steps"},
      {"{% set x = 'a' * 5000000 %}{% set y = 'a' * 2500000 ~ 'b' %}{% for i in range(100000) %}{{ y in x }}{% endfor "
       "%}",
       "steps"},
      {"{% set x = ['a' * 1000000] * 5000 %}{{ x|sort|length }}{% for i in range(100000) %}{{ x|sort|length }}{% "
       "endfor %}",
       "more than"},
      {"{{ 2 ** 99999999 }}", "64 bits"},
      {"{{ '%.999999999f' % 1 }}", "precision"},
      {"{{ [1]|slice(99999999999)|list }}", "steps"},
      {"{{ 'ab'|replace('', 'x' * 100000000)|replace('', 'y' * 100000000) }}", "memory"},
  };
  RenderOptions options;
  options.limits.steps = 2'000'000;  // a tenth of the default, and of its time
  options.limits.memory_bytes = 64 << 20;
  options.limits.output_bytes = 16 << 20;
  for (const auto& [source, words] : cases) {
    auto begin = std::chrono::steady_clock::now();
    auto rendered = render(source, "{}", options);
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    ASSERT_FALSE(rendered) << source;
    EXPECT_NE(rendered.error().message.find(words), std::string::npos) << source << "\n" << rendered.error().message;
    EXPECT_LT(seconds, 10) << source;
  }
}

TEST(Limits, HostileNesting) {
  const std::string deep[] = {
      "{{ " + repeated("(", 100000) + "1" + repeated(")", 100000) + " }}",
      "{{ " + repeated("[", 100000),
      "{{ " + repeated("not ", 100000) + "x }}",
      "{{ " + repeated("-", 100000) + "1 }}",
      "{{ 1" + repeated(" + 1", 100000) + " }}",
      "{{ x" + repeated(".a", 100000) + " }}",
      "{{ x" + repeated("|trim", 100000) + " }}",
      "{{ x" + repeated("()", 100000) + " }}",
      "{{ " + repeated("1 if 1 else ", 50000) + "1 }}",
      repeated("{% if x %}", 50000),
      repeated("{% for x in y %}", 50000),
      repeated("{% macro m() %}", 50000),
      "{% set " + repeated("(", 100000) + "a" + repeated(")", 100000) + " = 1 %}",
  };
  for (const std::string& source : deep) {
    auto t = Template::parse(source, "t");
    ASSERT_FALSE(t) << source.substr(0, 40);
    EXPECT_NE(t.error().message.find("deep"), std::string::npos) << t.error().message;
  }
}

TEST(Limits, LongButFlatIsFine) {
  EXPECT_EQ(text("{{ " + repeated("'a' ~ ", 20000) + "'b' }}").size(), 20001);
  EXPECT_EQ(text(repeated("{% if x %}{% elif true %}a{% endif %}", 5000)).size(), 5000);
  std::string chain = "{% if x == 1 %}";
  for (int i = 0; i < 5000; ++i) chain += "{% elif x == 2 %}{% set y" + std::to_string(i) + " = 1 %}";
  EXPECT_EQ(text(chain + "{% else %}z{% endif %}", R"({"x":0})"), "z");
}

TEST(Limits, SourceSize) {
  TemplateLimits limits;
  limits.source_bytes = 10;
  auto t = Template::parse("01234567890", "t", limits);
  ASSERT_FALSE(t);
  EXPECT_EQ(t.error().message, "t: the template has 11 bytes, the limit is 10");
}

TEST(Limits, DeepInput) {
  Json deep = Json::array();
  for (int i = 0; i < 1000; ++i) deep = Json::array({std::move(deep)});
  Json context = {{"x", std::move(deep)}};
  auto t = Template::parse("{{ x }}", "t");
  ASSERT_TRUE(t);
  auto rendered = t->render(context);
  ASSERT_FALSE(rendered);
  EXPECT_NE(rendered.error().message.find("nested more than"), std::string::npos);
}

TEST(Limits, WhatRefersToItselfIsFreed) {  // under the address sanitizer a leak fails the test
  EXPECT_EQ(text("{% set ns = namespace() %}{% set ns.me = [ns, {'n': ns}] %}{{ ns.me|length }}"), "2");
  EXPECT_EQ(text("{% set ns = namespace() %}{% for x in [1] %}{% macro m() %}{{ m }}{% endmacro %}{% set ns.m = m %}"
                 "{% set ns.l = loop %}{% endfor %}{{ ns.l.index }}"),
            "1");
  EXPECT_EQ(
      text("{% set ns = namespace(l=none) %}{% for i in range(3000) %}{% for x in [ns.l] %}{% set ns.l = [loop] %}"
           "{% endfor %}{% endfor %}{{ ns.l|length }}"),
      "1");
  EXPECT_EQ(text("{% set ns = namespace(l=none) %}{% for i in range(50000) %}{% set ns.l = namespace(n=ns.l) %}{% "
                 "endfor %}ok"),
            "ok");
}

}  // namespace
}  // namespace argent::testing
