#include <cstdlib>
#include <filesystem>

#include "gguf/gguf.h"
#include "sampling.h"
#include "tokenizer/tokenizer.h"

namespace argent::grammar {
namespace {

TEST(Regex, WholeTextsMatch) {
  const auto compiler = small_compiler();
  const struct {
    const char* pattern;
    std::vector<const char*> in, out;
  } cases[] = {
      {"[a-c]+", {"a", "cab"}, {"", "d", "ad"}},
      {"^(foo|ba[rz])$", {"foo", "bar", "baz"}, {"fo", "foobar"}},
      {"\\d{2,3}(?:-\\d)?", {"12", "123-4"}, {"1", "1234", "12-"}},
      {"(?<year>\\d{4})", {"2024"}, {"202"}},
      {"a?b*?c+", {"c", "abbbc"}, {"ab"}},
      {"[^a-z\\n]x", {"Ax", "日x"}, {"ax", "\nx"}},
      {"[-a\\]]{2}", {"-]", "aa"}, {"b-"}},
      {".", {"a", "é", " "}, {"\n", "ab"}},
      {"\\u00e9|\\x41|\\u{1F600}", {"é", "A", "😀"}, {"B"}},
      {"a|", {"a", ""}, {"b"}},
      {"(a*)*b", {"b", "aaab"}, {"a"}},
      {"((a?){3}){2}", {"", "aaaaaa"}, {"aaaaaaa"}},
      {"x{40,60}", {"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}, {"xxx"}},
  };
  for (const auto& c : cases) {
    const auto compiled = compiler->regex(c.pattern);
    ASSERT_TRUE(compiled) << c.pattern << ": " << compiled.error().message;
    for (const char* text : c.in) EXPECT_TRUE(accepts(*compiled, text)) << c.pattern << " " << text;
    for (const char* text : c.out) EXPECT_FALSE(accepts(*compiled, text)) << c.pattern << " " << text;
  }
  for (const char* bad :
       {"(",     ")",     "a**",  "*a",     "[",      "[]",  "[b-a]",  "a{3,2}", "a{99999}", "\\",
        "(?=a)", "(?i)a", "\\bx", "(a)\\1", "\\p{L}", "a^b", "x\\u12", "a{",     "(?<n",     "\xff"}) {
    const auto compiled = compiler->regex(bad);
    ASSERT_FALSE(compiled) << bad;
    EXPECT_TRUE(compiled.error().message.starts_with("regular expression")) << compiled.error().message;
  }
}

constexpr const char* kArithmetic = R"gbnf(# sums of products
root  ::= expr "\n"
expr  ::= term (("+" | "-") term)*
term  ::= factor ("*" factor)*
factor ::= number
         | "(" expr ")"
number ::= [0-9]{1,3} ( "." [0-9]+ )?
)gbnf";
constexpr const char* kChess = R"gbnf(root ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n"){0,3}
move ::= (pawn | piece | castle) [+#]?
piece ::= [NBKQR] [a-h]? [1-8]? "x"? square
pawn ::= ([a-h] "x")? square ("=" [NBKQR])?
castle ::= "O-O" "-O"?
square ::= [a-h] [1-8]
)gbnf";
constexpr const char* kJson = R"gbnf(root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ([^"\\\x7F\x01-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
)gbnf";

TEST(Gbnf, LlamaCppsTextsAreRead) {
  const auto compiler = small_compiler();
  const struct {
    const char* grammar;
    std::vector<const char*> in, out;
  } cases[] = {
      {kArithmetic, {"1+2*(3-4.5)\n", "7\n"}, {"1+\n", "1234\n", "(1\n"}},
      {kChess, {"1. e4 e5\n", "1. Nf3 O-O-O\n2. exd5 Qxd5+\n"}, {"1. e9 e5\n", "e4"}},
      {kJson, {"{}", "{\"a\": [1, \"b\\n\", null] }"}, {"[1]", "{\"a\" 1}"}},
      {"root ::= . [^a] \"\\u00e9\\\"\"", {"xyé\""}, {"xaé\""}},
      {"root ::= \"a\"{2} | \"b\"{,2} | \"c\"{2,}", {"aa", "", "bb", "cccc"}, {"a", "bbb", "c"}},
      {"root ::= (\n  \"a\"\n  # why\n  | \"b\"\n)\n", {"a", "b"}, {"ab"}},
  };
  for (const auto& c : cases) {
    const auto compiled = compiler->gbnf(c.grammar);
    ASSERT_TRUE(compiled) << c.grammar << compiled.error().message;
    for (const char* text : c.in) EXPECT_TRUE(accepts(*compiled, text)) << c.grammar << text;
    for (const char* text : c.out) EXPECT_FALSE(accepts(*compiled, text)) << c.grammar << text;
  }
}

TEST(Gbnf, ErrorsNameThePlace) {
  const auto compiler = small_compiler();
  const struct {
    const char* grammar;
    const char* begins;
  } refused[] = {
      {"", "line 1, column 1: there is no rule 'root'"},
      {"root ::= a\nb ::= \"x\"", "line 1, column 10: rule 'a' is not defined"},
      {"root ::= \"x", "line 1, column 10: the literal"},
      {"root ::= \"x\"\nroot ::= \"y\"", "line 2, column 1: rule 'root' is defined twice"},
      {"root ::= (\"x\"", "line 1, column 10: '(' without"},
      {"root ::= \"x\")", "line 1, column 13: unexpected ')'"},
      {"root ::= *", "line 1, column 10: '*' has nothing"},
      {"root ::= [a-", "line 1, column 10: the class"},
      {"root ::= [z-a]", "line 1, column 11: a range"},
      {"root ::= \"\\q\"", "line 1, column 11: unknown escape"},
      {"root ::= \"a\"{3,1}", "line 1, column 18: {3,1}"},
      {"root = \"a\"", "line 1, column 6: '::='"},
      {"start: \"a\" | \"b\"", "line 1, column 6: '::=' must follow the rule's name (grammars are in GBNF's"},
      {"%llguidance {}\nstart: \"a\"", "line 1, column 1: a rule begins with its name (grammars are in GBNF's"},
      {"root ::= <think>", "line 1, column 10: tokens"},
      {"root ::= root \"a\" | \"b\"", "rule 'root' is left-recursive"},
      {"root ::= a? root \"x\" | \"b\"\na ::= \"a\"", "rule 'root' is left-recursive"},
      {"root ::= x\nx ::= y\ny ::= x \"a\" | \"b\"", "rule 'x' is left-recursive"},
      {"root ::= \"a\" root", "nothing satisfies rule 'root'"},
  };
  for (const auto& r : refused) {
    const auto compiled = compiler->gbnf(r.grammar);
    ASSERT_FALSE(compiled) << r.grammar;
    EXPECT_TRUE(compiled.error().message.starts_with(r.begins)) << r.grammar << "\n" << compiled.error().message;
  }
}

TEST(Choice, IsOneOfTheTexts) {
  const auto compiler = small_compiler();
  const std::vector<std::string> choices{"yes", "no", "no \"quote\"\n", "日本"};
  const auto compiled = compiler->choice(choices);
  ASSERT_TRUE(compiled) << compiled.error().message;
  for (const std::string& c : choices) EXPECT_TRUE(accepts(*compiled, c)) << c;
  for (const char* text : {"", "ye", "yesno", "NO"}) EXPECT_FALSE(accepts(*compiled, text)) << text;
  EXPECT_FALSE(compiler->choice({}));
  EXPECT_FALSE(compiler->choice(std::vector<std::string>{"a", ""}));
}

ToolCallStyle hermes() { return {"<tool_call>", {{.close = "\n</tool_call>"}}, "\n"}; }

const std::vector<Tool>& two_tools() {
  static const std::vector<Tool> tools{
      {"get_weather", R"({"type":"object","properties":{"city":{"type":"string"}},"required":["city"]})"}, {"now", ""}};
  return tools;
}

TEST(ToolCalls, AreOneOfTheToolsAndNothingElse) {
  const auto compiler = small_compiler();
  const auto compiled = compiler->tool_calls(two_tools(), hermes(), 2);
  ASSERT_TRUE(compiled) << compiled.error().message;
  const std::string weather =
      "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>";
  const std::string now = "<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>";
  EXPECT_TRUE(accepts(*compiled, weather));
  EXPECT_TRUE(accepts(*compiled, now + "\n" + weather));
  EXPECT_FALSE(accepts(*compiled, now + "\n" + now + "\n" + now));
  EXPECT_FALSE(accepts(*compiled, "Sure! " + now));
  EXPECT_FALSE(accepts(*compiled, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {}}\n</tool_call>"));
  EXPECT_FALSE(accepts(*compiled, "<tool_call>\n{\"name\": \"now\", \"arguments\": 5}\n</tool_call>"));
  const auto bad =
      compiler->tool_calls(std::vector<Tool>{{"a", ""}, {"b", R"({"properties":{"x":{"not":{}}}})"}}, hermes(), 1);
  ASSERT_FALSE(bad);
  EXPECT_TRUE(bad.error().message.starts_with("tools/1/parameters#/properties/x: 'not'")) << bad.error().message;
  EXPECT_FALSE(compiler->tool_calls(std::vector<Tool>{{"bad name", ""}}, hermes(), 1));
  EXPECT_FALSE(compiler->tool_calls(std::vector<Tool>{{"a", R"({"type":"string"})"}}, hermes(), 1));
}

TEST(ToolCalls, WithoutParametersTakeNone) {
  const auto compiler = small_compiler();
  const auto call = [](std::string_view arguments) {
    return fmt::format("{{\"name\": \"f\", \"arguments\": {}}}</tool_call>", arguments);
  };
  const struct {
    const char* schema;
    bool takes_any;
  } rows[] = {{R"({"type":"object","properties":{}})", false},
              {R"({"properties":{},"required":[],"title":"f"})", false},
              {R"({"type":"object","properties":{},"additionalProperties":true})", true},
              {R"({"type":"object","properties":{},"additionalProperties":{"type":"integer"}})", true},
              {R"({"type":"object"})", true},
              {"{}", true},
              {"", true}};
  for (const auto& row : rows) {
    const auto block = compiler->tool_block(std::vector<Tool>{{"f", row.schema}}, hermes(), 1);
    ASSERT_TRUE(block) << block.error().message;
    EXPECT_TRUE(accepts(*block, call("{}"))) << row.schema;
    EXPECT_TRUE(accepts(*block, call("{ }"))) << row.schema;
    EXPECT_EQ(accepts(*block, call("{\"a\": 1}")), row.takes_any) << row.schema;
  }
}

TEST(ToolCalls, BlocksAreCompleteAtTheirEnd) {
  const auto compiler = small_compiler();
  const auto compiled = compiler->tool_block(two_tools(), hermes(), 2);
  ASSERT_TRUE(compiled) << compiled.error().message;
  Matcher matcher(*compiled);
  EXPECT_FALSE(matcher.accept_text("{\"name\": \"nobody"));
  EXPECT_EQ(matcher.n_accepted(), 0);
  EXPECT_TRUE(matcher.accept_text("\n{\"name\": \"now\", \"arguments\": {"));
  EXPECT_EQ(matcher.n_accepted(), 1);
  EXPECT_TRUE(matcher.accept_text("}}\n</tool_call"));
  EXPECT_FALSE(matcher.is_complete());
  EXPECT_TRUE(matcher.accept('>'));
  EXPECT_TRUE(matcher.is_complete());
  EXPECT_TRUE(matcher.accept_text(" \n\n\t "));
  EXPECT_TRUE(matcher.is_complete());
  EXPECT_FALSE(matcher.accept_text("<tool_call>"));  // another block is none of this one's
}

TEST(ToolCalls, ListsAndSeveralForms) {
  const auto compiler = small_compiler();
  const ToolCallStyle style{
      "[CALLS]",
      {{.open = "\n[", .between = "\n,", .close = "\n]"}, {.name_begin = "", .name_end = {"[ARGS]", "[A]"}, .end = ""}},
      ""};
  const auto calls = compiler->tool_calls(two_tools(), style, 3);
  ASSERT_TRUE(calls) << calls.error().message;
  const std::string now = R"({"name": "now", "arguments": {"a": [1]}})";
  EXPECT_TRUE(accepts(*calls, "[CALLS][" + now + "]"));
  EXPECT_TRUE(accepts(*calls, "[CALLS][" + now + ", " + now + " ,\n" + now + "]"));
  EXPECT_FALSE(accepts(*calls, "[CALLS][" + now + ", " + now + ", " + now + ", " + now + "]"));
  EXPECT_FALSE(accepts(*calls, "[CALLS][" + now + "][CALLS][" + now + "]"));
  EXPECT_FALSE(accepts(*calls, "[CALLS][]"));
  EXPECT_TRUE(accepts(*calls, "[CALLS]now[ARGS]{}[CALLS]now[A]{}[CALLS]now[ARGS]{}"));
  EXPECT_FALSE(accepts(*calls, "[CALLS]now[ARGS]{}[CALLS]now[A]{}[CALLS]now[ARGS]{}[CALLS]now[ARGS]{}"));
  const auto block = compiler->tool_block(two_tools(), style, 1);
  ASSERT_TRUE(block) << block.error().message;
  EXPECT_TRUE(accepts(*block, "[" + now + "] "));
  EXPECT_TRUE(accepts(*block, "now[ARGS]{}"));
  EXPECT_FALSE(accepts(*block, "[" + now + ", " + now + "]"));
}

TEST(ToolCalls, ArgumentsInTags) {
  const auto compiler = small_compiler();
  const ToolCallStyle style{"<c>",
                            {{.open = "\n",
                              .name_begin = "<i ",
                              .name_end = {">"},
                              .end = "\n</i>",
                              .between = "\n",
                              .close = "\n</c>",
                              .tags = ToolCallStyle::Tags{"\n<p ", ">", "</p>"}}},
                            "",
                            "to=",
                            ":"};
  const std::vector<Tool> tools{
      {"f",
       R"({"type":"object","required":["s","n"],"properties":{"s":{"type":"string"},"n":{"type":"integer","maximum":9},
           "e":{"type":"string","enum":["a\"b","c"]},"p":{"type":["string","null"],"pattern":"^[a-c]+$"},
           "l":{"type":"string","maxLength":2},"o":{"type":"object","properties":{"k":{"type":"string"}}},
           "u":{"enum":["x",1]}}})",
       true},
      {"g", R"({"not":{}})", false}};
  const auto block = compiler->tool_block(tools, style, 2);
  ASSERT_TRUE(block) << block.error().message;
  const auto f = [](const std::string& parameters) { return "\n<i f>" + parameters + "</i></c>"; };
  const std::string good = "\n<p s>a \"b\" </p </b> <<p x>\n\\n</p>\n<p n>7</p>";
  for (const char* more : {"", "<p e>a\"b</p>", "\n<p p>cab</p>", "<p l></p>", "<p l>é<</p>",
                           "<p o>{\"k\": \"</p>\"}</p>", "<p u>\"x\"</p>", "<p u>1</p>", "<p e>c</p><p l>xy</p>"})
    EXPECT_TRUE(accepts(*block, f(good + more))) << more;
  for (const char* bad : {"<p e>a</p>", "<p p>x</p>", "<p l>xyz</p>", "<p u>x</p>", "<p o>text</p>", "<p z>1</p>",
                          "<p l>x</p><p e>c</p>", "<p n>7</p>"})
    EXPECT_FALSE(accepts(*block, f(good + bad))) << bad;
  EXPECT_FALSE(accepts(*block, f("<p n>7</p>")));
  EXPECT_FALSE(accepts(*block, f("<p s>x</p><p n>\"7\"</p>")));
  EXPECT_TRUE(accepts(*block, "<i g><p any>what</p><p thing>ever</p></i><i g></i></c>"));
  EXPECT_FALSE(accepts(*block, "<i g></i><i g></i><i g></i></c>"));
  const auto forced = compiler->tool_calls(tools, style, 1);
  ASSERT_TRUE(forced) << forced.error().message;
  EXPECT_TRUE(accepts(*forced, "to=g:<c><i g></i></c>"));
  EXPECT_FALSE(accepts(*forced, "<c><i g></i></c>"));
  EXPECT_FALSE(accepts(*forced, "to=h:<c><i g></i></c>"));
}

TEST(ToolCalls, WhatCanNotBeEnforcedIsAnyObjectUnlessStrict) {
  const auto compiler = small_compiler();
  const auto call = [](std::string_view arguments) {
    return fmt::format("{{\"name\": \"f\", \"arguments\": {}}}</tool_call>", arguments);
  };
  const char* const schemas[] = {
      R"({"properties":{"x":{"not":{}}}})",
      R"({"type":"object","properties":{"x":{"type":"float"}}})",
      R"({"type":"array"})",
      R"({"type":)",
      R"({"type":"object","properties":{"x":{"$ref":"#/none"}}})",
      R"({"type":"object","required":["x"],"properties":{"x":{"minimum":2,"maximum":1}}})",
      R"({"type":"object","properties":{"x":{"type":"string","pattern":"((ab){1,900}){1,900}"}}})"};
  for (const char* schema : schemas) {
    const std::vector<Tool> tools{{"f", schema, false},
                                  {"g", R"({"properties":{"n":{"enum":[7]}},"required":["n"]})", false}};
    const auto compiled = compiler->tool_block(tools, hermes(), 1);
    ASSERT_TRUE(compiled) << schema << " " << compiled.error().message;
    EXPECT_TRUE(accepts(*compiled, call(R"({"y": [null, {}]})"))) << schema;
    EXPECT_TRUE(accepts(*compiled, call("{}"))) << schema;
    for (const char* arguments : {"5", "[]", "\"{}\"", ""}) EXPECT_FALSE(accepts(*compiled, call(arguments))) << schema;
    EXPECT_TRUE(accepts(*compiled, R"({"name": "g", "arguments": {"n": 7}}</tool_call>)"));  // the others are enforced
    EXPECT_FALSE(accepts(*compiled, R"({"name": "g", "arguments": {"n": 8}}</tool_call>)"));
    EXPECT_FALSE(compiler->tool_block(std::vector<Tool>{{"f", schema, true}}, hermes(), 1)) << schema;
  }
}

TEST(Matcher, RollbackAndForkGiveTheSameMasks) {
  const auto compiler = small_compiler();
  const auto tokens = small_vocabulary();
  const auto compiled = compiler->gbnf(kJson);
  ASSERT_TRUE(compiled);
  std::mt19937 rng(3);
  const size_t words = Matcher::mask_words(compiler->n_vocab());
  for (int round = 0; round < 30; round++) {
    std::vector<int32_t> ids;
    ASSERT_TRUE(sample(*compiled, tokens, compiler->n_vocab(), {kEnd}, rng, &ids));
    Matcher matcher(*compiled);
    std::vector<std::vector<uint32_t>> masks;
    for (int32_t id : ids) {
      masks.emplace_back(words);
      matcher.fill_mask(masks.back());
      Matcher fork = matcher.fork();
      ASSERT_TRUE(fork.accept(id));
      ASSERT_TRUE(matcher.accept(id));
      ASSERT_EQ(fork.is_ended(), matcher.is_ended());
    }
    ASSERT_TRUE(matcher.is_ended());
    std::vector<uint32_t> mask(words);
    EXPECT_FALSE(matcher.fill_mask(mask));
    EXPECT_FALSE(matcher.accept(kEnd));
    EXPECT_FALSE(matcher.rollback(static_cast<int>(ids.size()) + 1));
    for (int k = 0; k < 10; k++) {
      const int back = static_cast<int>(rng() % (matcher.n_accepted() + 1));
      ASSERT_TRUE(matcher.rollback(back));
      for (int n = matcher.n_accepted(); n < static_cast<int>(ids.size()); n++) {
        matcher.fill_mask(mask);
        ASSERT_EQ(mask, masks[n]);
        if (rng() % 8 == 0) break;
        ASSERT_TRUE(matcher.accept(ids[n]));
      }
    }
  }
}

TEST(Matcher, RefusesWhatIsNoToken) {
  const auto compiler = small_compiler();
  const auto compiled = compiler->regex("[ab]{3}");
  ASSERT_TRUE(compiled);
  Matcher matcher(*compiled);
  for (int32_t id : {-1, kEnd, compiler->n_vocab(), compiler->n_vocab() - 1, int32_t{'c'}, INT32_MAX, INT32_MIN})
    EXPECT_FALSE(matcher.accept(id)) << id;
  EXPECT_EQ(matcher.n_accepted(), 0);
  EXPECT_FALSE(matcher.is_complete());
  std::vector<uint32_t> small(1);
  EXPECT_FALSE(matcher.fill_mask(small));
  const auto forced = compiler->choice(std::vector<std::string>{"abc1", "abc2"});
  ASSERT_TRUE(forced);
  EXPECT_EQ(Matcher(*forced).forced_text(), "abc");
}

TEST(Compiler, KeepsWhatWasUsedLast) {
  const auto compiler = small_compiler({.cache_bytes = 64u << 20, .cache_count = 3});
  const auto a = compiler->regex("a");
  for (const char* p : {"b", "c", "a", "d"}) ASSERT_TRUE(compiler->regex(p));
  EXPECT_EQ(compiler->cached_count(), 3);
  EXPECT_EQ(compiler->regex("a")->get(), a->get());
  const auto tiny = small_compiler({.cache_bytes = 1, .cache_count = 3});
  ASSERT_TRUE(tiny->regex("a"));
  EXPECT_EQ(tiny->cached_count(), 0);
  EXPECT_EQ(tiny->cached_bytes(), 0u);
}

std::string repeated(std::string_view text, int n) {
  std::string out;
  for (int i = 0; i < n; i++) out += text;
  return out;
}

TEST(Hostile, DeepAndLargeInputsAreErrors) {
  const auto compiler = small_compiler();
  EXPECT_FALSE(compiler->gbnf("root ::= " + repeated("(", 60000) + "\"a\"" + repeated(")", 60000)));
  EXPECT_FALSE(compiler->regex(repeated("(", 5000) + "a" + repeated(")", 5000)));
  EXPECT_FALSE(
      compiler->json_schema(R"({"type":"string","pattern":")" + repeated("(", 5000) + repeated(")", 5000) + "\"}"));
  EXPECT_FALSE(compiler->json_schema(repeated("[", 10000) + repeated("]", 10000)));
  EXPECT_FALSE(compiler->json_schema(repeated(R"({"items":)", 3000) + "{}" + repeated("}", 3000)));
  EXPECT_FALSE(compiler->json_schema(R"({"const":")" + repeated("x", 2 << 20) + "\"}"));
  EXPECT_FALSE(compiler->gbnf("root ::= \"" + repeated("x", 300 << 10) + "\""));
  EXPECT_FALSE(compiler->regex(repeated("(a|b)", 60000)));
  EXPECT_FALSE(compiler->regex("((a{0,1000}){0,1000}){0,1000}"));
  EXPECT_FALSE(compiler->gbnf(std::string("root ::= \"\0\"", 12)));
}

// Pieces of grammars put together at random, and bytes changed in good ones: an answer each time, no matter which.
TEST(Hostile, RandomInputsAreAnswered) {
  const auto compiler = small_compiler();
  const std::vector<std::string> seeds{
      kArithmetic, kChess,
      R"({"type":"object","properties":{"a":{"$ref":"#/$defs/x"}},"$defs":{"x":{"enum":[1,"b"]}}})",
      R"({"anyOf":[{"type":"string","pattern":"^a+$","maxLength":4},{"minimum":2,"maximum":7}],"minItems":2})",
      "^(ab|[c-e]{2,3})*\\d+$"};
  const std::vector<std::string> pieces{"(",
                                        ")",
                                        "[",
                                        "]",
                                        "{",
                                        "}",
                                        "{2,",
                                        "*",
                                        "+",
                                        "?",
                                        "|",
                                        "\\",
                                        "\"",
                                        "^",
                                        "$",
                                        ":",
                                        ",",
                                        "root",
                                        " ::= ",
                                        "\n",
                                        "\"$ref\":\"#\"",
                                        "\"allOf\":[",
                                        "\"type\":\"object\"",
                                        "true",
                                        "1e999",
                                        "\xff"};
  std::mt19937 rng(4);
  std::vector<uint32_t> mask(Matcher::mask_words(compiler->n_vocab()));
  int compiled_count = 0;
  for (int round = 0; round < 10000; round++) {
    std::string text = seeds[rng() % seeds.size()];
    const int edits = 1 + static_cast<int>(rng() % 4);
    for (int e = 0; e < edits; e++) {
      const size_t at = rng() % (text.size() + 1);
      if (rng() % 3 == 0)
        text.erase(at, rng() % 12);
      else if (rng() % 2 == 0)
        text.insert(at, pieces[rng() % pieces.size()]);
      else if (at < text.size())
        text[at] = static_cast<char>(rng());
    }
    const auto compiled = rng() % 3 == 0   ? compiler->regex(text)
                          : text[0] == '{' ? compiler->json_schema(text)
                                           : compiler->gbnf(text);
    if (!compiled) {
      ASSERT_EQ(compiled.error().message.find('\n'), std::string::npos);
      continue;
    }
    compiled_count++;
    Matcher matcher(*compiled);
    for (int step = 0; step < 3 && matcher.fill_mask(mask); step++)
      matcher.accept(static_cast<int32_t>(rng() % compiler->n_vocab()));
  }
  EXPECT_GT(compiled_count, 500);
}

TEST(RealVocabulary, TextsUnderTheMaskKeepToTheGrammar) {
  const char* folder = std::getenv("ARGENT_MODELS");
  const std::string path = folder ? std::string(folder) + "/smollm2-135m-instruct-q4_1.gguf" : "";
  if (!folder || !std::filesystem::exists(path)) GTEST_SKIP() << "ARGENT_MODELS has no smollm2-135m-instruct-q4_1.gguf";
  const auto file = gguf::File::open(path);
  ASSERT_TRUE(file) << file.error().message;
  const auto tokenizer = Tokenizer::load(*file);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  const int n_vocab = (*tokenizer)->n_vocab() + 64;
  const auto compiler = Compiler::make(**tokenizer, n_vocab);
  ASSERT_TRUE(compiler) << compiler.error().message;
  std::vector<std::string> tokens((*tokenizer)->n_vocab());
  for (int id = 0; id < (*tokenizer)->n_vocab(); id++)
    if (!(*tokenizer)->is_control(id)) (*tokenizer)->append_bytes(id, tokens[id], false);
  const std::vector<int32_t> ends((*tokenizer)->end_ids().begin(), (*tokenizer)->end_ids().end());
  ASSERT_FALSE(ends.empty());
  const auto bytes = small_compiler();  // says byte by byte whether a text is right
  std::mt19937 rng(5);
  const char* schema =
      R"({"type":"object","properties":{"name":{"type":"string","maxLength":12},"age":{"type":"integer","minimum":0,"maximum":130},"tags":{"type":"array","items":{"enum":["a","b"]},"maxItems":3}},"required":["name","age"],"additionalProperties":false})";
  const auto lengths = (*compiler)->json_schema(R"({"type":"string","minLength":70,"maxLength":2000})");
  ASSERT_TRUE(lengths);
  for (int round = 0; round < 20; round++) {
    Matcher matcher(*lengths);
    std::vector<uint32_t> mask(Matcher::mask_words(n_vocab));
    for (int step = 0; step < 100 && !matcher.is_complete() && matcher.fill_mask(mask); step++) {
      int32_t pick = static_cast<int32_t>(rng() % tokens.size());
      while (!(mask[pick / 32] >> (pick % 32) & 1)) pick = (pick + 1) % static_cast<int32_t>(tokens.size());
      ASSERT_TRUE(matcher.accept(pick)) << pick;
    }
  }
  for (int round = 0; round < 10; round++) {
    for (const bool is_schema : {true, false}) {
      const auto compiled = is_schema ? (*compiler)->json_schema(schema) : (*compiler)->gbnf(kJson);
      const auto check = is_schema ? bytes->json_schema(schema) : bytes->gbnf(kJson);
      ASSERT_TRUE(compiled && check);
      const auto text = sample(*compiled, tokens, n_vocab, ends, rng);
      ASSERT_TRUE(text);
      EXPECT_TRUE(accepts(*check, *text)) << *text;
    }
  }
}

}  // namespace
}  // namespace argent::grammar
