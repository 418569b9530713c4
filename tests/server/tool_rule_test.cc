// Answers with calls that the model may make or not, drawn at random under the rule: what opens as a call is one.
#include "server/tool_rule.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "grammar/checker.h"
#include "tokenizer/tokenizer.h"

namespace argent::server {
namespace {

constexpr int32_t kEnd = 0;

// Single bytes as a byte-level vocabulary writes them, pieces that cross the seams of calls, and control tokens.
std::string shown(std::string_view bytes) {
  std::string out;
  for (char c : bytes) out += c == ' ' ? "Ġ" : c == '\n' ? "Ċ" : c == '\t' ? "ĉ" : std::string(1, c);
  return out;
}

struct Vocabulary {
  explicit Vocabulary(std::vector<std::string> controls) {
    const auto add = [&](std::string text, TokenType type) {
      texts.push_back(std::move(text));
      vocab.types.push_back(type);
    };
    add("<|end|>", TokenType::control);
    for (char c = 33; c < 127; ++c) add(std::string(1, c), TokenType::normal);
    for (const char* piece :
         {" ",          "\n",          "\t",           "\n\n",         "<tool",          "_call",
          "<tool_call", "call>",       "call>\n",      ">{",           ">{\"",           ">x",
          "><",         ">\n",         "> ",           "x<tool_call>", "<tool_call>{\"", "</tool",
          "}}",         "}\n",         "}}\n</",       "{\"",          "{\"name",        "\":",
          "\": ",       "\": \"",      "\",",          "\": {\"",      "\":x",           "\": 7",
          "name",       "\"name\":",   "\"name\": \"", "{\"name\":\"", "arguments",      "parameters",
          "city",       "get_weather", "now",          "Paris",        "Rome",           "is it",
          " the",       "[{",          "}]",           "]\n",          "```json",        "```",
          "; ",         ";{"})
      add(shown(piece), TokenType::normal);
    for (std::string& c : controls) add(std::move(c), TokenType::control);
    vocab.model = "gpt2";
    vocab.pre = "default";
    vocab.eos = kEnd;
    for (const std::string& t : texts) vocab.tokens.push_back(t);
    tokenizer = Tokenizer::make(vocab);
    const auto made = grammar::Compiler::make(*tokenizer, tokenizer->n_vocab());
    EXPECT_TRUE(made) << made.error().message;
    compiler = *made;
  }
  std::string bytes(int32_t id) const {
    std::string out;
    tokenizer->append_bytes(id, out, true);
    return out;
  }

  std::vector<std::string> texts;
  Vocab vocab;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<grammar::Compiler> compiler;
};

const Json& tools() {
  static const Json t = Json::parse(R"([
      {"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{
          "city":{"enum":["Paris","Rome"]},"days":{"type":"integer","minimum":1,"maximum":14}},"required":["city"]}}},
      {"type":"function","function":{"name":"now","parameters":{"type":"object","properties":{}}}}])");
  return t;
}

std::unique_ptr<TokenRule> rule_of(const Vocabulary& v, const OutputForm& form, bool several = true,
                                   std::string_view begun = {}) {
  std::vector<grammar::Tool> list;
  for (const Json& tool : tools())
    list.push_back({tool["function"]["name"].get<std::string>(), tool["function"]["parameters"].dump(), false});
  std::vector<std::shared_ptr<const grammar::Compiled>> blocks;
  for (const CallMark& mark : call_marks(form.tools)) {
    auto block = v.compiler->tool_block(list, mark.style, several ? 3 : 1);
    EXPECT_TRUE(block) << block.error().message;
    blocks.push_back(*block);
  }
  return watch_calls(*v.tokenizer, form, std::make_shared<CallOpenings>(*v.tokenizer, form), std::move(blocks), several,
                     begun);
}

struct Drawn {
  std::string text;
  bool ended = false;
};

struct Drawer {
  const Vocabulary& v;
  Rng& rng;
  std::vector<uint32_t> mask;
  bool restricted = false;

  bool allowed(int32_t id) const { return mask[size_t(id) / 32] >> (id % 32) & 1; }
  void ask(TokenRule& rule) {
    mask.assign((size_t(v.tokenizer->n_vocab()) + 31) / 32, ~0u);
    const std::vector<uint32_t> before = mask;
    restricted = rule.restrict(mask);
    EXPECT_TRUE(restricted || mask == before);
  }
  // One of the allowed tokens for which `like` holds; -1: none.
  template <class Like>
  int32_t pick(Like like) {
    std::vector<int32_t> set;
    for (int32_t id = 0; id < v.tokenizer->n_vocab(); ++id)
      if (allowed(id) && like(id)) set.push_back(id);
    return set.empty() ? -1 : set[rng.next() % set.size()];
  }
  // Anything at all, with a liking for what spells one of the marks, and for what ends.
  Drawn draw(TokenRule& rule, const std::vector<std::string>& marks, int most) {
    Drawn out;
    std::string spelling = marks[rng.next() % marks.size()];
    for (int step = 0; step < most; ++step) {
      ask(rule);
      int32_t id = -1;
      if (step > most / 2) id = pick([&](int32_t t) { return t == kEnd; });
      if (id < 0 && !spelling.empty() && rng.next() % 12 != 0)  // also what goes on behind the mark
        id = pick([&](int32_t t) {
          const std::string b = v.bytes(t);
          return t != kEnd && (spelling.starts_with(b) || b.starts_with(spelling));
        });
      if (id < 0 && step > most / 3)
        for (const char* closer : {"\"", "}", "]", ">", ":", ",", "1"})
          if (id < 0) id = pick([&](int32_t t) { return v.bytes(t) == closer; });
      if (id < 0) id = pick([&](int32_t t) { return t != kEnd || rng.next() % 4 == 0; });
      if (id < 0) {
        ADD_FAILURE() << "nothing may come behind " << out.text;
        return out;
      }
      EXPECT_TRUE(rule.accept(id)) << out.text << " + " << v.bytes(id);
      if (id == kEnd) {
        out.ended = true;
        return out;
      }
      const std::string b = v.bytes(id);
      out.text += b;
      spelling = spelling.starts_with(b) ? spelling.substr(b.size()) : "";
      if (spelling.empty() && rng.next() % 8 == 0) spelling = marks[rng.next() % marks.size()];
    }
    return out;
  }
};

OutputDelta parse(const OutputForm& form, std::string_view text, std::string_view begun = {}) {
  OutputParser parser(form, tools(), [](uint32_t i) { return std::to_string(i); });
  parser.go_on_from(begun);
  OutputDelta all;
  for (OutputDelta d : {parser.push(text), parser.finish()}) {
    all.content += d.content;
    all.reasoning += d.reasoning;
    for (ToolDelta& call : d.calls)
      if (call.name.empty())
        all.calls.back().arguments += call.arguments;
      else
        all.calls.push_back(call);
  }
  return all;
}

void expect_valid(const ToolDelta& call, const std::string& text) {
  const Json arguments = Json::parse(call.arguments, nullptr, false);
  for (const Json& tool : tools())
    if (tool["function"]["name"] == call.name) {
      EXPECT_TRUE(grammar::valid(arguments, tool["function"]["parameters"], tool["function"]["parameters"])) << text;
      return;
    }
  ADD_FAILURE() << call.name << " in " << text;
}

struct StyleCase {
  ToolStyle style;
  std::vector<std::string> marks;     // none of which may be left in the text of an answer that ended
  std::vector<std::string> controls;  // of the vocabulary
};
const std::vector<StyleCase>& style_cases() {
  static const std::vector<StyleCase> cases = {{ToolStyle::hermes, {"<tool_call>"}, {}},
                                               {ToolStyle::hermes, {"<tool_call>"}, {"<tool_call>", "</tool_call>"}},
                                               {ToolStyle::mistral, {"[TOOL_CALLS]"}, {}},
                                               {ToolStyle::mistral, {"[TOOL_CALLS]"}, {"[TOOL_CALLS]", "[ARGS]"}},
                                               {ToolStyle::llama3, {"<|python_tag|>"}, {"<|python_tag|>"}},
                                               {ToolStyle::atem, {"<atem:function_calls>"}, {"<|message|>"}},
                                               {ToolStyle::deepseek,
                                                {"<｜tool▁calls▁begin｜>"},
                                                {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
                                                 "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"}}};
  return cases;
}

TEST(ToolRule, WhatOpensIsACallOfTheToolsInEveryStyle) {
  for (const StyleCase& c : style_cases()) {
    const Vocabulary v(c.controls);
    const OutputForm form{c.style, "<think>", "</think>", false};
    Rng rng(1 + uint64_t(c.style));
    Drawer drawer{v, rng, {}};
    uint32_t n_calls = 0, n_ended = 0;
    for (int i = 0; i < 150; ++i) {
      const Drawn drawn = drawer.draw(*rule_of(v, form), c.marks, 200);
      const OutputDelta parsed = parse(form, drawn.text);
      for (const ToolDelta& call : parsed.calls)
        if (drawn.ended) expect_valid(call, drawn.text);
      n_calls += uint32_t(parsed.calls.size()), n_ended += drawn.ended;
      if (!drawn.ended) continue;                  // cut in the middle of a call
      if (c.style == ToolStyle::llama3) continue;  // an object that is no call is text with all that is in it
      for (const std::string& mark : c.marks)
        EXPECT_EQ(parsed.content.find(mark), std::string::npos) << drawn.text << "\n" << parsed.content;
    }
    EXPECT_GT(n_calls, 60u) << int(c.style);
    EXPECT_GT(n_ended, 60u) << int(c.style);
  }
}

// Styles whose calls are plain objects: one that begins with its name where the answer begins.
TEST(ToolRule, ObjectsAtTheBeginning) {
  const Vocabulary v({});
  for (const ToolStyle style : {ToolStyle::llama3, ToolStyle::json, ToolStyle::gemma, ToolStyle::llama4}) {
    const OutputForm form{style, "", "", false};
    Rng rng(3);
    Drawer drawer{v, rng, {}};
    uint32_t n_calls = 0;
    for (int i = 0; i < 100; ++i) {
      auto rule = rule_of(v, form);
      const std::string begin = std::vector<std::string>{"{\"name\":", "\n{ \"name\" :", "{\n\t\"name\":"}[i % 3];
      std::string text;
      for (char c : begin) {
        drawer.ask(*rule);
        const int32_t id = drawer.pick([&](int32_t t) { return v.bytes(t) == std::string(1, c); });
        ASSERT_GE(id, 0) << begin;
        ASSERT_TRUE(rule->accept(id));
        text += c;
      }
      const Drawn drawn = drawer.draw(*rule, {"\""}, 150);
      text += drawn.text;
      const OutputDelta parsed = parse(form, text);
      for (const ToolDelta& call : parsed.calls)
        if (drawn.ended) expect_valid(call, text);
      EXPECT_TRUE(!drawn.ended || !parsed.calls.empty()) << text;
      n_calls += uint32_t(parsed.calls.size());
    }
    EXPECT_GT(n_calls, 40u);
  }
}

// The ids of a text, byte by byte.
struct Script {
  const Vocabulary& v;
  Drawer& drawer;
  TokenRule& rule;
  int32_t id(std::string_view text) const {
    for (int32_t t = 0; t < v.tokenizer->n_vocab(); ++t)
      if (v.bytes(t) == text) return t;
    ADD_FAILURE() << "no token " << text;
    return -1;
  }
  bool allows(std::string_view text) {
    drawer.ask(rule);
    return drawer.allowed(id(text));
  }
  void say(std::string_view text) {
    for (char c : text) ASSERT_TRUE(rule.accept(id(std::string(1, c)))) << text;
  }
};

TEST(ToolRule, TokensThatHoldTheEndOfAMarkAndMore) {
  const Vocabulary v({});
  const OutputForm form{ToolStyle::hermes, "<think>", "</think>", false};
  Rng rng(1);
  Drawer drawer{v, rng, {}};
  auto rule = rule_of(v, form);
  Script s{v, drawer, *rule};
  s.say("a > b <b>x");
  drawer.ask(*rule);
  EXPECT_FALSE(drawer.restricted);  // no mask where nothing can go wrong
  EXPECT_TRUE(s.allows(">x"));
  s.say(" <tool");
  EXPECT_TRUE(s.allows("_call"));
  EXPECT_TRUE(s.allows(">x"));
  s.say("_call");
  for (const char* good : {">", ">{", ">{\"", ">\n", "> ", "x", "call>"}) EXPECT_TRUE(s.allows(good)) << good;
  for (const char* bad : {">x", "><"}) EXPECT_FALSE(s.allows(bad)) << bad;
  ASSERT_TRUE(rule->accept(s.id(">{\"")));
  EXPECT_FALSE(s.allows("{"));
  EXPECT_FALSE(s.allows("x"));
  EXPECT_TRUE(s.allows("name"));
  const auto twin = rule->fork();
  s.say("name\": \"now\", \"arguments\": {}}</tool_call");
  EXPECT_FALSE(s.allows("x"));
  EXPECT_TRUE(s.allows(">\n"));  // white space behind the end
  ASSERT_TRUE(rule->accept(s.id(">\n")));
  drawer.ask(*rule);
  EXPECT_FALSE(drawer.restricted);
  Script other{v, drawer, *twin};  // went its own way
  EXPECT_TRUE(other.allows("name"));
  EXPECT_FALSE(other.allows("x"));
}

TEST(ToolRule, ThoughtsAreFree) {
  const Vocabulary v({});
  for (const bool starts : {false, true}) {
    const OutputForm form{ToolStyle::hermes, "<think>", "</think>", starts};
    Rng rng(1);
    Drawer drawer{v, rng, {}};
    auto rule = rule_of(v, form);
    Script s{v, drawer, *rule};
    s.say(starts ? "a <tool_call>x" : "\n<think>a <tool_call>x");
    drawer.ask(*rule);
    EXPECT_FALSE(drawer.restricted);
    s.say("</think>\n<tool_call>");
    EXPECT_FALSE(s.allows("x"));
    EXPECT_TRUE(s.allows("{\"name"));
  }
  // Behind text it is none.
  const OutputForm form{ToolStyle::hermes, "<think>", "</think>", false};
  Rng rng(1);
  Drawer drawer{v, rng, {}};
  auto rule = rule_of(v, form);
  Script s{v, drawer, *rule};
  s.say("text <think> <tool_call>");
  EXPECT_FALSE(s.allows("x"));
}

TEST(ToolRule, OneCallOnly) {
  const Vocabulary v({"<tool_call>"});
  const OutputForm form{ToolStyle::hermes, "", "", false};
  Rng rng(1);
  Drawer drawer{v, rng, {}};
  auto rule = rule_of(v, form, false);
  Script s{v, drawer, *rule};
  EXPECT_TRUE(s.allows("<tool_call>"));
  s.say("<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call> and <tool_call");
  EXPECT_FALSE(s.allows(">"));
  EXPECT_FALSE(s.allows(">{"));
  EXPECT_TRUE(s.allows("<tool"));
  EXPECT_TRUE(s.allows("x"));
  s.say("x");
  EXPECT_FALSE(s.allows("<tool_call>"));  // the control token
}

// Behind a call an answer stands as at its beginning.
TEST(ToolRule, BehindACall) {
  const Vocabulary v({"<|python_tag|>"});
  const OutputForm form{ToolStyle::llama3, "<think>", "</think>", false};
  Rng rng(1);
  Drawer drawer{v, rng, {}};
  auto rule = rule_of(v, form);
  Script s{v, drawer, *rule};
  s.say("Look: {\"name\":");
  EXPECT_TRUE(s.allows("x"));  // behind text this opens nothing
  ASSERT_TRUE(rule->accept(s.id("<|python_tag|>")));
  EXPECT_FALSE(s.allows("x"));
  s.say("{\"name\": \"now\", \"parameters\": {}} ; {\"name\":");
  EXPECT_FALSE(s.allows("x"));
  s.say("\"now\", \"parameters\": {}}\n<think>{\"name\":");
  EXPECT_TRUE(s.allows("x"));
}

TEST(ToolRule, GoesOnFromWhatThePromptBegan) {
  const Vocabulary v({});
  const OutputForm form{ToolStyle::hermes, "<think>", "</think>", false};
  Rng rng(1);
  Drawer drawer{v, rng, {}};
  const struct {
    const char *begun, *forbidden, *allowed, *rest, *content, *calls;
  } rows[] = {
      {"I look. <tool_call", ">x", ">{", ">{\"name\": \"now\", \"arguments\": {}}</tool_call>!", "!", "now {}"},
      {"<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Pa", "x", "r", "ris\"}}</tool_call>", "",
       "get_weather {\"city\": \"Paris\"}"},
      {"<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>\n<tool_call>", "x", "{", "{", "{", ""},
      {"<tool_call>{\"nobody", "", "x", "x\"}", "x\"}", ""},  // what was given is no call: free
      {"<tool_call", "", "y", "y>", "y>", ""},
      {"<think>\nHm, <tool_call>", "", "x", "x</think>so", "so", ""},
  };
  for (const auto& row : rows) {
    auto rule = rule_of(v, form, true, row.begun);
    Script s{v, drawer, *rule};
    EXPECT_FALSE(*row.forbidden && s.allows(row.forbidden)) << row.begun;
    EXPECT_TRUE(s.allows(row.allowed)) << row.begun;
    const OutputDelta parsed = parse(form, row.rest, row.begun);
    EXPECT_EQ(parsed.content, row.content) << row.begun;
    std::string calls;
    for (const ToolDelta& call : parsed.calls) calls += call.name + " " + call.arguments;
    EXPECT_EQ(calls, row.calls) << row.begun;
  }
}

}  // namespace
}  // namespace argent::server
