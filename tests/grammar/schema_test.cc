#include <gtest/gtest.h>

#include "checker.h"
#include "sampling.h"

namespace argent::grammar {
namespace {

struct Case {
  const char* schema;
  std::vector<const char*> in;   // texts that must be allowed
  std::vector<const char*> out;  // texts that must not
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {R"({"type":"string"})",
       {R"("")", R"("a\"b\u00e9")", "\"日本\"", R"("\ud83d\ude00")"},
       {"\"\n\"", R"("\ud83d")", "1", R"("\x")"}},
      {R"({"type":"string","minLength":2,"maxLength":3})",
       {R"("ab")", "\"日本\""},
       {R"("a")", R"("abcd")", "\"a\tb\""}},
      {R"({"type":"string","maxLength":2000})", {R"("")"}, {}},
      {R"({"type":"string","pattern":"b+c"})", {R"("bc")", R"("xbbcx")", R"("\"bc\n")"}, {R"("b")", R"("")"}},
      {R"({"type":"string","pattern":"^[a-z]{2,4}$"})", {R"("ab")", R"("abcd")"}, {R"("a")", R"("abcde")", R"("Ab")"}},
      {R"({"type":"string","pattern":"^(a|b$)|c"})", {R"("ax")", R"("b")", R"("xcx")"}, {R"("bx")", R"("xa")"}},
      {R"({"type":"string","pattern":"^[^\"\\\\]+$"})", {R"("ab")"}, {R"("\"")", R"("\\")"}},
      {R"({"type":"string","pattern":"^\\d+$","minLength":2,"maxLength":4})",
       {R"("12")", R"("1234")"},
       {R"("1")", R"("12345")"}},
      {R"({"type":"string","pattern":"abc","maxLength":9})", {R"("abc")", R"("xabcx")"}, {R"("abcabcabcabc")"}},
      {R"({"type":"integer"})", {"0", "-5", "123456789012345678"}, {"01", "1.0", "-", "1e5", "--1"}},
      {R"({"type":"integer","minimum":-17,"maximum":230})",
       {"-17", "0", "99", "100", "230"},
       {"-18", "231", "1000", "00"}},
      {R"({"type":"integer","exclusiveMinimum":0})", {"1", "10", "99999"}, {"0", "-1"}},
      {R"({"type":"integer","minimum":0.5,"exclusiveMaximum":3})", {"1", "2"}, {"0", "3"}},
      {R"({"type":"integer","maximum":-100})", {"-100", "-999"}, {"-99", "0", "5"}},
      {R"({"type":"integer","multipleOf":7})", {"0", "7", "-14", "700"}, {"1", "8"}},
      {R"({"type":"integer","multipleOf":5,"minimum":3,"maximum":22})", {"5", "20"}, {"0", "7", "25"}},
      {R"({"type":"number"})", {"0", "-0.5", "1e5", "3.14", "2E-3"}, {".5", "1.", "+1", "01"}},
      {R"({"type":"number","minimum":0,"maximum":1})",
       {"0", "1", "0.5", "0.999", "1.0"},
       {"1.1", "-0.1", "2", "1.", "0."}},
      {R"({"type":"number","exclusiveMinimum":-1.25,"exclusiveMaximum":2.5})",
       {"-1.249", "-1", "0", "2.49", "2"},
       {"-1.25", "2.5", "2.50", "-1.3", "3"}},
      {R"({"type":"number","minimum":10.05})", {"10.05", "10.1", "11", "1000.5"}, {"10", "10.04", "9.9", "10.0"}},
      {R"({"type":"number","multipleOf":0.25})", {"0.25", "1.5", "-3", "0.75", "0.0"}, {"0.1", "0.3", "1.55"}},
      {R"({"type":"boolean"})", {"true", "false"}, {"null", "True"}},
      {R"({"type":"null"})", {"null"}, {"nul", "0"}},
      {R"({"const":null})", {"null"}, {"0", "\"null\""}},
      {R"({"const":{"a":[1,"x/y"]}})", {R"({"a":[1,"x/y"]})", R"({ "a": [1, "x/y"] })"}, {R"({"a":[1]})"}},
      {R"({"enum":["a\"b","c\\d","é",1,null,true]})",
       {R"("a\"b")", R"("c\\d")", "\"é\"", "1", "null"},
       {R"("a")", "2"}},
      {R"({"type":"string","enum":["red",1,"green"]})", {R"("red")", R"("green")"}, {"1"}},
      {R"({"type":"integer","enum":[1,5,10],"maximum":5})", {"1", "5"}, {"10"}},
      {R"({"type":["string","null"],"maxLength":1})", {"null", R"("a")"}, {R"("ab")", "1"}},
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a"],"additionalProperties":false})",
       {R"({"a":1})", R"({"a":1,"b":"x"})", "{\n  \"a\": 1\n}"},
       {"{}", R"({"b":"x"})", R"({"a":1,"c":1})", R"({"a":1,})", "{\n\n\"a\":1}"}},
      {R"({"type":"object","properties":{"a":{},"b":{},"c":{}}})",
       {"{}", R"({"a":1})", R"({"b":[]})", R"({"a":1,"c":{}})"},
       {R"({"d":1})", R"({,"b":1})"}},
      {R"({"type":"object","properties":{"ab":{"type":"integer"}},"additionalProperties":{"type":"boolean"}})",
       {R"({"ab":1,"x":true})", R"({"a":true})", R"({"abc":true})", R"({"":false})"},
       {R"({"ab":true})", R"({"x":1})", R"({"\u0061b":true})"}},
      {R"({"type":"object","additionalProperties":{"type":"integer"},"minProperties":1,"maxProperties":2})",
       {R"({"x":1})", R"({"x":1,"y":2})"},
       {"{}", R"({"x":1,"y":2,"z":3})"}},
      {R"({"type":"object","properties":{"a":{},"b":{},"c":{}},"minProperties":2,"maxProperties":2})",
       {R"({"a":1,"c":2})"},
       {R"({"a":1})", R"({"a":1,"b":1,"c":1})"}},
      {R"({"type":"object","patternProperties":{"^x-":{"type":"integer"}}})",
       {"{}", R"({"x-a":1})"},
       {R"({"y":1})", R"({"x-a":"s"})"}},
      {R"({"type":"object","propertyNames":{"pattern":"^[a-z]+$"},"additionalProperties":{"type":"integer"}})",
       {R"({"ab":1})"},
       {R"({"A":1})"}},
      {R"({"type":"object","required":["z"]})", {R"({"z":1})"}, {"{}"}},
      {R"({"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":3})",
       {"[1,2]", "[1, 2, 3]"},
       {"[1]", "[1,2,3,4]", "[]"}},
      {R"({"type":"array"})", {"[]", "[1,\"a\",{}]"}, {"{}"}},
      {R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":{"type":"boolean"}})",
       {"[]", "[1]", "[1,\"a\",true,false]"},
       {"[\"a\"]", "[1,\"a\",2]"}},
      {R"({"type":"array","maxItems":0})", {"[]", "[ ]"}, {"[1]"}},
      {R"({"anyOf":[{"type":"integer"},{"type":"array","items":{"type":"null"}}]})", {"1", "[null]"}, {"[1]", "\"a\""}},
      {R"({"oneOf":[{"type":"integer"},{"const":"x"}]})", {"1", "\"x\""}, {"\"y\""}},
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"anyOf":[{"required":["a"]},{"required":["b"]}]})",
       {R"({"a":1})", R"({"b":1})", R"({"a":1,"b":2})"},
       {"{}"}},
      {R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer","minimum":3}}},{"properties":{"a":{"maximum":5},"b":{"type":"null"}},"required":["a","b"]}]})",
       {R"({"a":4,"b":null})"},
       {R"({"a":6,"b":null})", R"({"a":2,"b":null})", R"({"a":4})"}},
      {R"({"allOf":[{"$ref":"#/$defs/p"}],"description":"d","$defs":{"p":{"type":"integer","minimum":1}}})",
       {"1"},
       {"0"}},
      {R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["v","next"]}}})",
       {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":null}})"},
       {R"({"v":1})"}},
      {R"({"type":"object","properties":{"k":{"type":"array","items":{"$ref":"#"}}}})",
       {R"({"k":[{},{"k":[]}]})"},
       {R"({"k":[1]})"}},
      {R"({"properties":{"a":{"anyOf":[{"type":"integer"},{"type":"string"}]},"b":{"$ref":"#/properties/a/anyOf/1"}},"required":["b"]})",
       {R"({"b":"x"})"},
       {R"({"b":1})"}},
      {R"({"$ref":"#/definitions/a~1b%25","definitions":{"a/b%":{"type":"null"}}})", {"null"}, {"1"}},
      {R"({})", {"1", "[{\"a\":null}]", "\"x\""}, {"", "x"}},
      {R"(true)", {"1"}, {"x"}},
      {R"({"type":"object"})", {"{}", R"({"a":{"b":[1,2]}})"}, {"[]"}},
      {R"({"type":"string","nullable":true})", {"null", "\"a\""}, {"1"}},
      {R"({"minimum":5})", {"5", "7.5"}, {"4"}},
      {R"({"type":"object","properties":{"a":false,"b":{"type":"null"}},"additionalProperties":{"type":"null"}})",
       {R"({"b":null})", R"({"x":null})"},
       {R"({"a":null})"}},
      {R"({"type":"object","properties":{"loop":{"$ref":"#/$defs/l"},"x":{"type":"null"}},"$defs":{"l":{"type":"object","properties":{"l":{"$ref":"#/$defs/l"}},"required":["l"]}}})",
       {R"({"x":null})", "{}"},
       {R"({"loop":{"l":1}})"}},
  };
  return all;
}

TEST(Schema, AllowsAndForbidsTheListedTexts) {
  const auto compiler = small_compiler();
  for (const Case& c : cases()) {
    const auto compiled = compiler->json_schema(c.schema);
    ASSERT_TRUE(compiled) << c.schema << "\n" << compiled.error().message;
    for (const char* text : c.in) EXPECT_TRUE(accepts(*compiled, text)) << c.schema << "\n" << text;
    for (const char* text : c.out) EXPECT_FALSE(accepts(*compiled, text)) << c.schema << "\n" << text;
  }
}

TEST(Schema, RandomTextsUnderTheMaskAreValid) {
  const auto compiler = small_compiler();
  const auto tokens = small_vocabulary();
  std::mt19937 rng(1);
  for (const Case& c : cases()) {
    const Json schema = Json::parse(c.schema);
    const auto compiled = compiler->json_schema(c.schema);
    ASSERT_TRUE(compiled);
    for (int round = 0; round < 25; round++) {
      const auto text = sample(*compiled, tokens, compiler->n_vocab(), {kEnd}, rng);
      ASSERT_TRUE(text) << c.schema;
      const Json value = Json::parse(*text, nullptr, false);
      ASSERT_FALSE(value.is_discarded()) << c.schema << "\n" << *text;
      ASSERT_TRUE(valid(value, schema, schema)) << c.schema << "\n" << *text;
    }
  }
}

TEST(Schema, NumbersKeepToRandomBounds) {
  const auto compiler = small_compiler();
  const auto tokens = small_vocabulary();
  std::mt19937 rng(2);
  for (int round = 0; round < 150; round++) {
    const bool integer = rng() % 2 == 0;
    const auto bound = [&] {
      const double scale = std::pow(10.0, static_cast<int>(rng() % 4));
      const double x = (static_cast<double>(rng() % 4000) - 2000) / scale;
      return integer ? std::floor(x) : x;
    };
    double low = bound(), high = bound();
    if (low > high) std::swap(low, high);
    Json schema = {{"type", integer ? "integer" : "number"}};
    const int sides = rng() % 3;
    const bool strict = rng() % 2 == 0;
    if (sides != 1) schema[strict ? "exclusiveMinimum" : "minimum"] = low;
    if (sides != 2) schema[rng() % 2 == 0 ? "exclusiveMaximum" : "maximum"] = high;
    const auto compiled = compiler->json_schema(schema.dump());
    if (!compiled) {
      EXPECT_LE(high - low, integer ? 1 : 0) << schema.dump() << compiled.error().message;
      continue;
    }
    for (int k = 0; k < 10; k++) {
      const auto text = sample(*compiled, tokens, compiler->n_vocab(), {kEnd}, rng);
      ASSERT_TRUE(text) << schema.dump();
      const Json value = Json::parse(*text, nullptr, false);
      ASSERT_TRUE(!value.is_discarded() && valid(value, schema, schema)) << schema.dump() << "\n" << *text;
    }
    // And the bounds themselves, the middle, and their neighbours are told apart rightly.
    for (double x : {low, high, std::floor((low + high) / 2), low - 1, high + 1, low + 1, high - 1, 0.0, -low, -high}) {
      if (integer) x = std::floor(x);
      const std::string text = integer ? std::to_string(static_cast<int64_t>(x)) : Json(x).dump();
      if (text.find('e') != std::string::npos || text == "-0.0") continue;
      EXPECT_EQ(accepts(*compiled, text), valid(Json::parse(text), schema, schema)) << schema.dump() << "\n" << text;
    }
  }
}

TEST(Schema, FormatsHoldTheirTexts) {
  const auto compiler = small_compiler();
  const struct {
    const char* format;
    std::vector<const char*> in, out;
  } formats[] = {
      {"date",
       {"2024-02-29", "2000-02-29", "1999-12-31"},
       {"2023-02-29", "1900-02-29", "2023-04-31", "2023-13-01", "23-01-01"}},
      {"time", {"23:59:59Z", "00:00:00.5+01:30"}, {"24:00:00Z", "12:00", "12:00:00"}},
      {"date-time", {"2024-02-29T10:00:00Z"}, {"2024-02-29 10:00:00Z", "2024-02-29"}},
      {"duration", {"P1D", "PT5M", "P1Y2M3DT4H", "P2W"}, {"P", "PT", "1D", "P1D2M"}},
      {"uuid", {"123e4567-e89b-12d3-a456-426614174000"}, {"123e4567e89b12d3a456426614174000"}},
      {"email", {"a.b@example.org"}, {"a@@b", "a b@c", "@c"}},
      {"ipv4", {"255.0.19.1"}, {"256.0.0.1", "1.2.3", "01.2.3.4"}},
      {"ipv6", {"::1", "2001:db8::1", "1:2:3:4:5:6:7:8", "fe80::"}, {"1:2:3", ":::", "12345::"}},
      {"hostname", {"a-b.example"}, {"-a", "a_b", "a..b"}},
      {"uri", {"https://a.b/c?d=e#f", "urn:isbn:1"}, {"/relative", "http://a b"}},
  };
  for (const auto& f : formats) {
    const auto compiled = compiler->json_schema(fmt::format(R"({{"type":"string","format":"{}"}})", f.format));
    ASSERT_TRUE(compiled) << f.format << compiled.error().message;
    for (const char* text : f.in)
      EXPECT_TRUE(accepts(*compiled, fmt::format("\"{}\"", text))) << f.format << " " << text;
    for (const char* text : f.out)
      EXPECT_FALSE(accepts(*compiled, fmt::format("\"{}\"", text))) << f.format << " " << text;
  }
}

TEST(Schema, WhatIsNotEnforcedIsRefusedWithItsPath) {
  const auto compiler = small_compiler();
  const struct {
    const char* schema;
    const char* begins;
  } refused[] = {
      {R"({"properties":{"x":{"not":{"type":"string"}}}})", "#/properties/x: 'not'"},
      {R"({"type":"object","if":{},"then":{}})", "#: 'if'"},
      {R"({"properties":{"a":{"type":"object","dependentRequired":{"a":["b"]}}}})",
       "#/properties/a: 'dependentRequired'"},
      {R"({"items":{"type":"array","contains":{"type":"null"}}})", "#/items: 'contains'"},
      {R"({"type":"array","uniqueItems":true})", "#: 'uniqueItems'"},
      {R"({"properties":{"u/v":{"format":"iri","type":"string"}}})", "#/properties/u~1v: the format 'iri'"},
      {R"({"properties":{"a":{"minLenght":3}}})", "#/properties/a: the keyword 'minLenght'"},
      {R"({"$ref":"other.json#/a"})", "#: '$ref' to 'other.json#/a'"},
      {R"({"anyOf":[{"type":"null"},{"$ref":"#/nowhere"}]})", "#/anyOf/1: '$ref' to '#/nowhere'"},
      {R"({"$ref":"#"})", "#: the schema refers to itself"},
      {R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}})", "#/$defs/"},
      {R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})", "#"},
      {R"({"allOf":[{"$ref":"#"},{"type":"null"}]})", "#"},
      {R"({"type":"array","minItems":3,"maxItems":2})", "#: 'minItems' is above 'maxItems'"},
      {R"({"type":"string","minLength":3,"maxLength":2})", "#: 'minLength' is above"},
      {R"({"type":"integer","minimum":3,"maximum":2})", "#: no integer lies"},
      {R"({"type":"integer","minimum":0.2,"maximum":0.8})", "#: no integer lies"},
      {R"({"type":"number","exclusiveMinimum":3,"maximum":3})", "#: no number lies"},
      {R"({"properties":{"a":{"type":"string","pattern":"^+[a-z]$"}}})",
       "#/properties/a/pattern: regular expression, character 3: "},
      {R"({"type":"string","pattern":"^{2}x$"})", "#/pattern: regular expression, character 5: "},
      {R"({"type":"string","pattern":"(?=a)b"})", "#/pattern: regular expression, character 3: look-around"},
      {R"({"type":"string","pattern":"a\\1"})", "#/pattern: regular expression, character 4: back references"},
      {R"({"type":"string","pattern":"^(ab)+c{2,}$","minLength":7})", "#: the pattern and the length"},
      {R"({"type":"strnig"})", "#: 'type' must be one of"},
      {R"({"enum":[]})", "#: 'enum' must be"},
      {R"({"properties":{"a":{"minLength":-1}}})", "#/properties/a: 'minLength' must be a whole number"},
      {R"({"type":"object","patternProperties":{"a":{},"b":{}}})", "#: 'patternProperties'"},
      {R"({"type":"object","properties":{"ab":{}},"patternProperties":{"a":{}}})",
       "#/patternProperties/a: the pattern matches"},
      {R"({"type":"object","minProperties":2})", "#: 'minProperties' above 1"},
      {R"({"type":"object","properties":{"a":false},"required":["a"]})", "#/properties/a: the property is required"},
      {R"({"required":["a"],"additionalProperties":false})", "#: \"a\" is required"},
      {R"(false)", "nothing satisfies rule '#'"},
      {R"({"type":"string","enum":[1,2]})", "nothing satisfies rule '#'"},
      {R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})", "nothing satisfies rule '#'"},
      {R"({"allOf":[{"type":"string"},{"type":"integer"}]})", "nothing satisfies rule '#'"},
      {R"({"allOf":[{"pattern":"a"},{"pattern":"b"}]})", "#: two different 'pattern'"},
      {R"({"type":"number","multipleOf":0.1,"minimum":3})", "#: this multiple"},
      {R"({"type":"integer","multipleOf":99999})", "#: multiples of more than"},
      {R"({"properties":[]})", "#: 'properties' must be an object"},
      {R"([1])", "#: a schema is an object"},
      {R"({"type":)", "#: the schema is not JSON"},
      {"{\"type\":\"string\",\"title\":\"\xff\"}", "#: the schema is not JSON"},
  };
  for (const auto& r : refused) {
    const auto compiled = compiler->json_schema(r.schema);
    ASSERT_FALSE(compiled) << r.schema;
    EXPECT_TRUE(compiled.error().message.starts_with(r.begins)) << r.schema << "\n" << compiled.error().message;
    EXPECT_EQ(compiled.error().message.find('\n'), std::string::npos);
  }
}

TEST(Schema, WhiteSpaceIsBounded) {
  const auto compiler = small_compiler();
  const std::string schema = R"({"type":"array","items":{"type":"integer"}})";
  const auto four = compiler->json_schema(schema, {.max_indent = 4});
  const auto none = compiler->json_schema(schema, {.max_indent = 0});
  ASSERT_TRUE(four && none);
  EXPECT_TRUE(accepts(*four, "[\n    1,\n    2\n]"));
  EXPECT_TRUE(accepts(*four, "[1, 2]"));
  EXPECT_FALSE(accepts(*four, "[\n     1]"));
  EXPECT_FALSE(accepts(*four, "[\n\n1]"));
  EXPECT_FALSE(accepts(*four, "[  1]"));
  EXPECT_TRUE(accepts(*none, "[1,2]"));
  EXPECT_FALSE(accepts(*none, "[1, 2]"));
}

}  // namespace
}  // namespace argent::grammar
