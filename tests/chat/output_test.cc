// Answers taken apart: every style, good and malformed, however the text is cut.
#include "chat/output.h"

#include <gtest/gtest.h>

#include <chrono>

namespace argent {
namespace {

const Json& tools() {
  static const Json t = Json::parse(R"([
      {"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{
          "s":{"type":"string"},"n":{"type":"integer"},"o":{"type":["object","null"]},"u":{"type":["string","null"]}}}}},
      {"type":"function","function":{"name":"get.time-now","parameters":{}}},
      {"type":"function","function":{"name":"function"}}, {"type":"function"}, 7])");
  return t;
}

// "content|reasoning|name#id arguments|..." of all deltas joined.
struct Joined {
  OutputDelta sum;
  uint32_t n_calls = 0;

  void add(const OutputDelta& d) {
    sum.content += d.content;
    sum.reasoning += d.reasoning;
    for (const ToolDelta& c : d.calls) {
      if (c.index == sum.calls.size()) {
        EXPECT_FALSE(c.name.empty());
        sum.calls.push_back(c);
        continue;
      }
      ASSERT_EQ(c.index + 1, sum.calls.size());
      EXPECT_EQ(c.name + c.id, "");
      sum.calls.back().arguments += c.arguments;
    }
  }
  std::string text() const {
    std::string s = sum.content + "|" + sum.reasoning;
    for (const ToolDelta& c : sum.calls) s += "|" + c.name + "#" + c.id + " " + c.arguments;
    return s;
  }
};

Joined parse(const OutputForm& form, const std::vector<std::string_view>& pieces, const Json& with = tools()) {
  OutputParser parser(form, with, [](uint32_t i) { return std::to_string(i); });
  Joined j;
  for (std::string_view p : pieces) j.add(parser.push(p));
  j.add(parser.finish());
  EXPECT_TRUE(parser.finish().empty());
  EXPECT_EQ(parser.n_calls(), j.sum.calls.size());
  return j;
}

void expect_any_cut(const OutputForm& form, const std::string& text, const std::string& expected) {
  ASSERT_EQ(parse(form, {text}).text(), expected) << text;
  std::string_view t = text;
  std::vector<std::string_view> bytes;
  for (size_t i = 0; i < t.size(); ++i) {
    bytes.push_back(t.substr(i, 1));
    ASSERT_EQ(parse(form, {t.substr(0, i), t.substr(i)}).text(), expected) << text << " cut at " << i;
  }
  ASSERT_EQ(parse(form, bytes).text(), expected) << text << " in bytes";
}

struct Row {
  std::string text, expected;
};
void expect_rows(const OutputForm& form, const std::vector<Row>& rows) {
  for (const Row& r : rows) expect_any_cut(form, r.text, r.expected);
}
// Everything is content.
void expect_text(const OutputForm& form, const std::vector<std::string>& texts) {
  for (const std::string& t : texts) expect_any_cut(form, t, t + "|");
}

OutputForm style(ToolStyle s) { return {s, "", "", false}; }

std::string nested(int depth) {
  std::string s;
  for (int i = 0; i < depth; ++i) s += "{\"a\":";
  return s + "1" + std::string(depth, '}');
}

TEST(Output, Reasoning) {
  OutputForm form{ToolStyle::hermes, "<think>", "</think>", false};
  expect_rows(form,
              {
                  {"plain", "plain|"},
                  {"", "|"},
                  {" \n ", " \n |"},
                  {"<think>\nwhy\n\nso\n</think>\n\nanswer\n", "answer\n|why\n\nso"},
                  {"\n <think>a</think>b", "b|a"},
                  {"<think>\n\n</think>\n\nb", "b|"},
                  {"<think>a</think>\n<think>b</think> c", " c|ab"},
                  {"<think>never closed </thin", "|never closed </thin"},
                  {"<think>a</thi</think>b", "b|a</thi"},
                  {"say <think>a</think>", "say <think>a</think>|"},
                  {"<thin", "<thin|"},
                  {"<<think>a</think>", "<<think>a</think>|"},
                  {"a</think>b", "a</think>b|"},
                  {"<think>x<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call></think>y",
                   "y|x<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>"},
                  {"<think>a</think>\n\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<think>b</think>"
                   "\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n",
                   "|ab|f#0 {}|f#1 {}"},
              });
  form.starts_in_thought = true;
  expect_rows(form, {
                        {"\nwhy\n</think>\n\nb", "b|why"},
                        {"\n<think>\nwhy</think>b", "b|why"},
                        {"why <think> not</think>b", "b|why <think> not"},
                        {"why\n", "|why"},
                    });
  expect_text({ToolStyle::none, "", "", false}, {"<think>a</think>", "<tool_call>{\"name\":\"f\",\"arguments\":{}}"});
}

TEST(Output, Hermes) {
  OutputForm form = style(ToolStyle::hermes);
  expect_rows(
      form,
      {
          {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"x\"}}\n</tool_call>", "||f#0 {\"s\": \"x\"}"},
          {"<tool_call>{\"arguments\": { }, \"name\": \"f\"}</tool_call>", "||f#0 { }"},
          {"<tool_call>{\"id\":\"z\",\"type\":\"function\",\"n\\u0061me\":\"\\u0066\",\"parameters\":{}}</tool_call>",
           "||f#0 {}"},
          {"Look:\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n", "Look:\n||f#0 {}"},
          {"<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>\n{\"name\":\"get.time-now\","
           "\"arguments\":{\"a\":[1,-0.5e+3,true,null]}}\n</tool_call> then",
           " then||f#0 {}|get.time-now#1 {\"a\":[1,-0.5e+3,true,null]}"},
          {"<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":\"}{</tool_call>\\\"\\\\ \\ud83d\\ude00 "
           "é😀\",\"o\":{\"a\":{}}"
           "}}</tool_call>",
           "||f#0 {\"s\":\"}{</tool_call>\\\"\\\\ \\ud83d\\ude00 é😀\",\"o\":{\"a\":{}}}"},
          {"<<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", "<||f#0 {}"},
          {"<tool_call>{oops}</tool_call> <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
           "<tool_call>{oops}</tool_call> ||f#0 {}"},
          {"<tool_call><tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", "<tool_call>||f#0 {}"},
          {"<tool_call>{\"name\":\"f\",\"arguments\":" + nested(63) + "}</tool_call>", "||f#0 " + nested(63)},
      });
  std::string good = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"x\"}}\n</tool_call>";
  for (size_t n = 0; n < good.size(); ++n) expect_text(form, {good.substr(0, n)});
  expect_text(form, {
                        "<tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call> and on",
                        "<tool_call>{\"name\":\"\",\"arguments\":{}}</tool_call>",
                        "<tool_call>{\"name\":\"f\"}</tool_call>",
                        "<tool_call>{\"arguments\":{}}</tool_call>",
                        "<tool_call>{\"name\":1,\"arguments\":{}}</tool_call>",
                        "<tool_call>{\"name\":\"f\",\"arguments\":[]}</tool_call>",
                        "<tool_call>{\"name\":\"f\",\"arguments\":\"{}\"}</tool_call>",
                        "<tool_call>{\"name\":\"f\",\"arguments\":null}</tool_call>",
                        "<tool_call>{\"name\":\"f\",\"arguments\":{},\"name\":\"f\"}</tool_call>",
                        "<tool_call>{\"name\":\"f\",\"arguments\":{},\"parameters\":{}}</tool_call>",
                        "<tool_call>{\"name\":\"f\",\"arguments\":{},\"why\":1}</tool_call>",
                        "<tool_call>{\"name\":\"f\",\"arguments\":{}} x</tool_call>",
                        "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":01}}</tool_call>",
                        "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"\n\"}}</tool_call>",
                        "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"\\x41\"}}</tool_call>",
                        "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"\\ud800\\n\"}}</tool_call>",
                        "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"\\ud800x\"}}</tool_call>",
                        "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"\\ud800\\u0041\"}}</tool_call>",
                        "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"\\udc00\"}}</tool_call>",
                        "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"\\ud800\"}}</tool_call>",
                        "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"\xff\"}}</tool_call>",
                        "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1,}}</tool_call>",
                        "<tool_call>{\"name\":\"f\",\"arguments\":" + nested(64) + "}</tool_call>",
                        "<tool_call>7</tool_call>",
                        "<tool_call></tool_call>",
                        "<tool_call>[]</tool_call>",
                        "\n\n <tool_call>{\"name\":\"g\"}</tool_call>\n ",
                    });
}

TEST(Output, Llama3) {
  OutputForm form = style(ToolStyle::llama3);
  std::string call = "{\"name\": \"f\", \"parameters\": {\"s\": \"x\"}}";
  expect_rows(form, {
                        {call, "||f#0 {\"s\": \"x\"}"},
                        {"\n" + call + "\n", "||f#0 {\"s\": \"x\"}"},
                        {"<|python_tag|>" + call, "||f#0 {\"s\": \"x\"}"},
                        {call + "; " + call + ";", "||f#0 {\"s\": \"x\"}|f#1 {\"s\": \"x\"}"},
                        {"[" + call + "]", "[" + call + "]|"},
                        {call + ";x", ";x||f#0 {\"s\": \"x\"}"},
                    });
  expect_text(form, {"Sure: " + call, "{\"a\": " + call + "}", "{\"name\": \"g\", \"parameters\": {}} " + call, "{",
                     "<|python_tag|>print(1)", call.substr(0, call.size() - 1)});
}

TEST(Output, Mistral) {
  OutputForm form = style(ToolStyle::mistral);
  expect_rows(form,
              {
                  {"[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"s\": \"]\"}}]", "||f#0 {\"s\": \"]\"}"},
                  {"[TOOL_CALLS] [{\"name\":\"f\",\"arguments\":{},\"id\":\"a\"}, {\"arguments\":{},\"name\":\"f\"}]",
                   "||f#0 {}|f#1 {}"},
                  {"[TOOL_CALLS]f[ARGS]{\"n\":1}", "||f#0 {\"n\":1}"},
                  {"hm[TOOL_CALLS]f[CALL_ID]a1[ARGS] {}[TOOL_CALLS]get.time-now{\"a\":{}}.",
                   "hm.||f#0 {}|get.time-now#1 {\"a\":{}}"},
              });
  expect_text(form, {
                        "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}}",
                        "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}},{\"name\":\"g\",\"arguments\":{}}]",
                        "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}},7]",
                        "[TOOL_CALLS][[{\"name\":\"f\",\"arguments\":{}}]]",
                        "[TOOL_CALLS][]",
                        "[TOOL_CALLS]g[ARGS]{}",
                        "[TOOL_CALLS]f[ARGS]{\"a\"}",
                        "[TOOL_CALLS]f[ARGS][]",
                        "[TOOL_CALLS]f[CALL_ID]a{}",
                        "[TOOL_CALLS]f {}",
                        "[TOOL_CALLS]",
                        "[TOOL_CALL",
                    });
}

TEST(Output, Gemma) {
  OutputForm form = style(ToolStyle::gemma);
  const std::string q = "<|\"|>";
  expect_rows(
      form,
      {
          {"```tool_code\nf(s='a')\n```", "||f#0 {\"s\": \"a\"}"},
          {"Ok.\n```tool_code\n[f(s='```'), f(n=2)]\n```\n", "Ok.\n||f#0 {\"s\": \"```\"}|f#1 {\"n\": 2}"},
          {"```tool_code\nf(s='''a\n'b''')\nf()```", "||f#0 {\"s\": \"a\\n'b\"}|f#1 {}"},
          {"```json\n{\"name\": \"f\", \"parameters\": {}}\n```", "||f#0 {}"},
          {"```json\n[{\"name\":\"f\",\"arguments\":{}},{\"name\":\"f\",\"arguments\":{}}]```", "||f#0 {}|f#1 {}"},
          {"[f(n=1)]", "||f#0 {\"n\": 1}"},
          {"\n{\"name\": \"f\", \"parameters\": {}}", "||f#0 {}"},
          {"<start_function_call>call:f{s:<escape>a \"}\"<escape>,n:-1.5,o:{a:[true,<escape><escape>]}}"
           "<end_function_call>",
           R"(||f#0 {"s": "a \"}\"", "n": -1.5, "o": {"a": [true, ""]}})"},
          {"<|tool_call>call:f{s:" + q + "<escape>\n" + q +
               ",\"n\":\"\\\"}\"}<tool_call|><|tool_call>call:f{}<tool_call|>",
           R"(||f#0 {"s": "<escape>\n", "n": "\"}"}|f#1 {})"},
      });
  expect_text(form, {
                        "```json\n{\"a\": [1, 2]}\n```\nis JSON",
                        "```json\n// none\n```",
                        "```tool_code\nprint(f(s='a'))\n```",
                        "```tool_code\nf('a')\n```",
                        "```tool_code\nf(s='a'\n```",
                        "```tool_code\nf(s='a')\n",
                        "```tool_code\n```",
                        "```python\nf(s='a')\n```",
                        "<start_function_call>call:f{s:a}<end_function_call>",
                        "<start_function_call>call:f{s:1,s:2}<end_function_call>",
                        "<start_function_call>call:g{s:1}<end_function_call>",
                        "<start_function_call>call:f{s:1]}<end_function_call>",
                        "<start_function_call>call:f{s:<escape>}<end_function_call>",
                        "<start_function_call>call:f{s:1}<tool_call|>",
                        "<|tool_call>f{}<tool_call|>",
                    });
}

TEST(Output, Deepseek) {
  OutputForm form = style(ToolStyle::deepseek);
  const std::string calls = "<｜tool▁calls▁begin｜>", end = "<｜tool▁calls▁end｜>", one = "<｜tool▁call▁begin｜>",
                    one_end = "<｜tool▁call▁end｜>", sep = "<｜tool▁sep｜>";
  std::string fenced = one + "function" + sep + "f\n```json\n{\"s\": \"```\"}\n```" + one_end;
  std::string bare = one + "f" + sep + "{\"n\":1}" + one_end;
  expect_rows(form, {
                        {calls + fenced + end, "||f#0 {\"s\": \"```\"}"},
                        {"Hm.\n\n" + calls + fenced + "\n" + fenced + end,
                         "Hm.\n\n||f#0 {\"s\": \"```\"}|f#1 {\"s\": \"```\"}"},
                        {calls + "\n" + bare + bare + "\n" + end + "\n", "||f#0 {\"n\":1}|f#1 {\"n\":1}"},
                        {calls + one + "function" + sep + "{}" + one_end + end, "||function#0 {}"},
                        {calls + one + "function" + sep + "f\n{}" + one_end + end, "||f#0 {}"},
                        {calls + one + "function" + sep + "f\n```\n{}\n```\n" + one_end + end, "||f#0 {}"},
                    });
  expect_text(form, {
                        calls + fenced,
                        calls + end,
                        calls + one + "g" + sep + "{}" + one_end + end + " so",
                        calls + one + "f" + sep + "{]" + one_end + end,
                        calls + one + "f" + sep + "[]" + one_end + end,
                        calls + one + "function" + sep + "f\n```js\n{}\n```" + one_end + end,
                        calls + one + "function" + sep + "f\n```json\n{}" + one_end + end,
                        one + "f" + sep + "{}" + one_end,
                        "<｜tool▁",
                    });
}

TEST(Output, Llama4) {
  OutputForm form = style(ToolStyle::llama4);
  expect_rows(form,
              {
                  {"[f(s=\"a\", n=1), get.time-now()]", "||f#0 {\"s\": \"a\", \"n\": 1}|get.time-now#1 {}"},
                  {"<|python_start|>[f(n=1)]<|python_end|>", "||f#0 {\"n\": 1}"},
                  {"x <|python_start|>f(n=1,)\n<|python_end|>y", "x y||f#0 {\"n\": 1}"},
                  {"<|python_start|>{\"name\":\"f\",\"parameters\":{}}<|python_end|>", "||f#0 {}"},
                  {"{\"name\":\"f\",\"parameters\":{}}", "||f#0 {}"},
                  {"[{\"name\":\"f\",\"parameters\":{}}]", "||f#0 {}"},
                  {R"([f(a='\'\n\x41\u00e9\U0001F600\q"', b="", c=''' ''', d='😀')])",
                   R"(||f#0 {"a": "'\nAé😀\\q\"", "b": "", "c": " ", "d": "😀"})"},
                  {"[f(a=[True,False,None,(1,),()],b={'k': {\"])\": -1.}},c=+.5,d=1e3)]",
                   R"x(||f#0 {"a": [true, false, null, [1], []], "b": {"k": {"])": -1.0}}, "c": 0.5, "d": 1e3})x"},
                  {"[ f ( n = 1 ) , ]", "||f#0 {\"n\": 1}"},
              });
  expect_text(form, {
                        "[1] says so",
                        "[f]",
                        "[f(]",
                        "[f(n=1)",
                        "[f(n=1); f()",
                        "[f(1)]",
                        "[f(n=g())]",
                        "[f(n=1,n=2)]",
                        "[f(n=1) f()]",
                        "[g(n=1)]",
                        "[f(n=01)]",
                        "[f(n=(1))]",
                        "[f(n='a\nb')]",
                        "[f(n={1:2})]",
                        "[f(n=x)]",
                        "[f(n='\\ud800')]",
                        "[f(n='\xff')]",
                        "[f(n=1}]",
                        "[]",
                        "so [f(n=1)]",
                        "f(n=1)",
                        "<|python_start|>print(1)<|python_end|>",
                        "<|python_start|>f(n=1)",
                        "[f(n=1))]",
                        "[f(n=.)]",
                        "[f(n=" + std::string(64, '[') + std::string(64, ']') + ")]",
                    });
  std::string deep = std::string(63, '[') + std::string(63, ']');
  expect_any_cut(form, "[f(n=" + deep + ")]", "||f#0 {\"n\": " + deep + "}");
}

TEST(Output, Json) {
  OutputForm form = style(ToolStyle::json);
  std::string call = "{\"name\": \"f\", \"arguments\": {}}";
  expect_rows(form, {
                        {"I call " + call + " now", "I call  now||f#0 {}"},
                        {"[" + call + "," + call + "]", "||f#0 {}|f#1 {}"},
                        {"```json\n" + call + "\n```", "||f#0 {}"},
                        {"[[" + call + "]] " + call, "[[" + call + "]] ||f#0 {}"},
                    });
  expect_text(form, {"{\"a\": " + call + "}", "[1, 2]", "{\"name\":\"g\",\"arguments\":" + call + "}", "[", "{ x",
                     "[" + call, "```json\n" + call});
}

TEST(Output, Atem) {
  OutputForm form = detect_output_form("<atem:function_calls>", [](std::string_view) { return false; });
  ASSERT_EQ(form.tools, ToolStyle::atem);
  auto call = [](const std::string& name, const std::string& parameters) {
    return " to=" + name + "<|message|><atem:function_calls>\n<atem:invoke name=\"" + name + "\">\n" + parameters +
           "</atem:invoke>\n</atem:function_calls>";
  };
  auto parameter = [](const std::string& k, const std::string& v) {
    return "<atem:parameter name=\"" + k + "\">" + v + "</atem:parameter>\n";
  };
  expect_rows(form,
              {
                  {" to=user<|message|>Hi", "Hi|"},
                  {"<|message|>Hi<|eot|>", "Hi|"},
                  {" to=self<|message|>why<|eom|><|start|>assistant to=user<|message|>so", "so|why"},
                  {call("f", parameter("s", " 1\n\"<b>\" ") + parameter("n", "12") + parameter("o", "{\"a\": [1]}") +
                                 parameter("u", "null") + parameter("x", "true") + parameter("y", "yes")),
                   R"(||f#0 {"s": " 1\n\"<b>\" ", "n": 12, "o": {"a": [1]}, "u": "null", "x": true, "y": "yes"})"},
                  {" to=self<|message|>a<|eom|><|start|>assistant" + call("f", "") + "<|eom|><|start|>assistant" +
                       call("get.time-now", parameter("a", "1")) + "<|eot|>",
                   "|a|f#0 {}|get.time-now#1 {\"a\": 1}"},
                  {"no header", "no header|"},
                  {"<atem:function_calls><atem:invoke name=\"f\"></atem:invoke></atem:function_calls>", "||f#0 {}"},
                  {" <atem:function_calls><atem:invoke name=\"f\"></atem:invoke></atem:function_calls>", "||f#0 {}"},
                  {" to=", " to=|"},
              });
  for (const std::string& p :
       {parameter("n", "twelve"), parameter("n", "1") + parameter("n", "1"), parameter("n", "0x"),
        std::string("<atem:parameter>1</atem:parameter>"), std::string("x")}) {
    std::string text = call("f", p);
    expect_any_cut(form, text, text.substr(text.find("<atem")) + "|");
  }
  form.starts_in_thought = true;
  expect_any_cut(form, "why<|eom|><|start|>assistant to=user<|message|>so", "so|why");
}

// The prompt ends with the first part; what comes back is of the second alone, but a call that is open in both is
// whole.
TEST(Output, GoesOnFromThePrompt) {
  const OutputForm form{ToolStyle::hermes, "<think>", "</think>", false};
  const std::string long_text(1500, 'x');
  const struct {
    std::string begun, text, expected;
  } rows[] = {
      {"", "<think>a</think>b", "b|a"},
      {"The", " end <think>", " end <think>|"},  // no thought behind text
      {"<think>\nHm", "m</think>\n\nso", "so|m"},
      {"<think>a</think>\n", "b", "b|"},
      {"I look. <tool_", "call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", "||f#0 {}"},
      {"<tool_call>{\"name\":\"f\",\"argu", "ments\":{\"n\":1}}</tool_call> x", " x||f#0 {\"n\":1}"},
      {"<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":\"" + long_text, "y\"}}</tool_call>",
       "||f#0 {\"s\":\"" + long_text + "y\"}"},
      {"<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n",
       "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", "||f#0 {}"},
      {"<tool_call>{\"name\"", ": 5}", ": 5}|"},  // what was given is not given again
      {"<tool_c", "up>", "up>|"},
      {"<tool_c", "", "|"},
      {"<<tool_call", ">x", ">x|"},
      {"a <", "b", "b|"},
  };
  for (const auto& row : rows)
    for (size_t cut = 0; cut <= row.text.size(); ++cut) {
      OutputParser parser(form, tools(), [](uint32_t i) { return std::to_string(i); });
      parser.go_on_from(row.begun);
      Joined j;
      j.add(parser.push(std::string_view(row.text).substr(0, cut)));
      j.add(parser.push(std::string_view(row.text).substr(cut)));
      j.add(parser.finish());
      ASSERT_EQ(j.text(), row.expected) << row.begun << " + " << row.text << " cut at " << cut;
      ASSERT_EQ(parser.n_calls(), j.sum.calls.size());
    }
}

TEST(Output, DeltasAreWholeCharacters) {
  OutputForm form{ToolStyle::deepseek, "<think>", "</think>", false};
  std::string text =
      "<think>é</thé</think>\n<｜tool▁sép｜>é<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"s\":\"";
  for (int i = 0; i < 500; ++i) text += i % 2 ? "é" : "😀";
  OutputParser parser(form, tools(), [](uint32_t) { return "id"; });
  for (size_t i = 0, n = 0; i < text.size(); i += n) {
    for (n = 1; i + n < text.size() && (text[i + n] & 0xc0) == 0x80;) ++n;
    OutputDelta d = parser.push(std::string_view(text).substr(i, n));
    Json all = {d.content, d.reasoning};
    for (const ToolDelta& c : d.calls) all.push_back(c.arguments);
    EXPECT_NO_THROW(all.dump()) << "at " << i;
  }
}

TEST(Output, NoToolsNoCalls) {
  std::string call = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
  for (const Json& none :
       {Json(), Json::array(), Json::object(), Json("f"), Json::parse(R"([{"function":{"name":1}}])")}) {
    EXPECT_EQ(parse(style(ToolStyle::hermes), {call}, none).text(), call + "|");
  }
}

// Long arguments come before their call is complete, in the pieces they are written in.
TEST(Output, LongArgumentsStream) {
  OutputForm form = style(ToolStyle::hermes);
  std::string head = "<tool_call>{\"name\":\"f\",\"arguments\":", arguments = "{\"s\":\"" + std::string(3000, 'x');
  OutputParser parser(form, tools(), [](uint32_t) { return "id"; });
  Joined j;
  j.add(parser.push(head + arguments.substr(0, 1000)));
  EXPECT_TRUE(j.sum.calls.empty());
  j.add(parser.push(arguments.substr(1000)));
  EXPECT_EQ(j.text(), "||f#id " + arguments);
  OutputDelta next = parser.push("yé");
  ASSERT_EQ(next.calls.size(), 1u);
  EXPECT_EQ(next.calls[0].arguments, "yé");
  EXPECT_EQ(next.calls[0].name + next.calls[0].id + next.content, "");

  expect_any_cut(form, head + arguments + "\"}}</tool_call>", "||f#0 " + arguments + "\"}");
  // What goes wrong afterwards is told twice: as far as it went, and as text.
  expect_any_cut(form, head + arguments, head + arguments + "||f#0 " + arguments);
  std::string broken = head + arguments + "\"}]</tool_call>";
  expect_any_cut(form, broken, broken + "||f#0 " + arguments + "\"}");
  // Behind its arguments, the name of a call comes too late for that.
  std::string late = "<tool_call>{\"arguments\":" + arguments + "\"},\"name\":";
  expect_any_cut(form, late + "\"f\"}</tool_call>", "||f#0 " + arguments + "\"}");
  expect_text(form, {late + "\"g\"}</tool_call>"});
  // Short calls around a long one keep their order.
  std::string list = "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}},{\"name\":\"f\",\"arguments\":" + arguments +
                     "\"}},{\"name\":\"f\",\"arguments\":{}}]";
  expect_any_cut(style(ToolStyle::mistral), list, "||f#0 {}|f#1 " + arguments + "\"}|f#2 {}");
}

// One MB in single bytes, the worst that each style's marks allow.
TEST(Output, TakesLinearTime) {
  const std::pair<ToolStyle, std::string> cases[] = {
      {ToolStyle::hermes, "<tool_call"},
      {ToolStyle::hermes, "<tool_call>{\"name\":\"f\",\"arguments\":{"},
      {ToolStyle::hermes, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\""},
      {ToolStyle::json, "[{\"name\":\"f\",\"arguments\":{}},"},
      {ToolStyle::json, "["},
      {ToolStyle::json, "{\"a\":["},
      {ToolStyle::gemma, "```"},
      {ToolStyle::gemma, "```tool_code\nf(a='"},
      {ToolStyle::gemma, "<|tool_call>call:f{a:<escape>"},
      {ToolStyle::deepseek, "<｜tool▁call"},
      {ToolStyle::llama4, "[f(a='"},
      {ToolStyle::atem, "<atem:function_calls><atem:invoke name=\"f\"><atem:parameter name=\"s\"></atem:parameter"},
  };
  for (const auto& [s, unit] : cases) {
    for (bool again : {true, false}) {  // the unit over and over, or once and then filling
      std::string text = unit;
      while (text.size() < 1 << 20) text += again ? std::string_view(unit) : "x";
      OutputParser parser(style(s), tools(), [](uint32_t) { return "id"; });
      auto begin = std::chrono::steady_clock::now();
      size_t bytes = 0;
      for (char c : text) bytes += parser.push({&c, 1}).content.size();
      bytes += parser.finish().content.size();
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5)) << unit;
      EXPECT_GE(bytes, text.size() / 2) << unit;
    }
  }
}

TEST(Output, Detection) {
  auto none = [](std::string_view) { return false; };
  auto with = [](std::string_view token) { return [token](std::string_view t) { return t == token; }; };
  EXPECT_EQ(detect_output_form("{{ '<tool_call>' }}", none).tools, ToolStyle::hermes);
  EXPECT_EQ(detect_output_form("{{ '<tool_call>' }}", with("<|python_tag|>")).tools, ToolStyle::hermes);
  EXPECT_EQ(detect_output_form("{{ '[TOOL_CALLS]' }}", none).tools, ToolStyle::mistral);
  EXPECT_EQ(detect_output_form("{{ '<|python_tag|>' }}", none).tools, ToolStyle::llama3);
  EXPECT_EQ(detect_output_form("{{ tools }}", with("<|python_tag|>")).tools, ToolStyle::llama3);
  EXPECT_EQ(detect_output_form("", with("<|python_start|>")).tools, ToolStyle::llama4);
  EXPECT_EQ(detect_output_form("{{ '<｜tool▁calls▁begin｜>' }}", none).tools, ToolStyle::deepseek);
  EXPECT_EQ(detect_output_form("{{ '<start_of_turn>' }}", none).tools, ToolStyle::gemma);
  EXPECT_EQ(detect_output_form("{% if tools %}", none).tools, ToolStyle::json);
  EXPECT_EQ(detect_output_form("{{ builtin_tools }}{{ toolset }}", none).tools, ToolStyle::none);
  EXPECT_EQ(detect_output_form("{{ '<think>' }}</think>", none).think_begin, "<think>");
  EXPECT_EQ(detect_output_form("[THINK][/THINK]", none).think_end, "[/THINK]");
  EXPECT_EQ(detect_output_form("x", none).think_begin, "");
  EXPECT_FALSE(detect_output_form("</think>", none).starts_in_thought);
}

}  // namespace
}  // namespace argent
