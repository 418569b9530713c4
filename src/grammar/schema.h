// JSON schemas to rules. Every keyword is either enforced by the rules or refused with its path ("#/properties/x:
// ..."); none is dropped. Rules may hold fewer texts than the schema allows, never others:
//   - properties come in the schema's order; an object with "properties" and no word on further ones has none
//   - further keys are spelled without \u; a key that is listed never comes as a further one
//   - integers are written without point and exponent; fractions have at most 32 digits
//   - a string with minLength or maxLength and no pattern has no characters that need an escape
//   - oneOf is read as anyOf, as everywhere in the field
// Enforced: type, enum, const, properties, required, additionalProperties, patternProperties (one pattern, no further
//   keys), propertyNames (without properties), minProperties (up to 1 where keys are free), maxProperties, items,
//   prefixItems, minItems, maxItems, pattern, minLength, maxLength, format (the table in strings.cc), minimum, maximum,
//   exclusive*, multipleOf, $ref within the document, $defs, allOf (merged), anyOf, oneOf, nullable, true, false.
// Refused: not, if/then/else, dependent*, contains, uniqueItems, unevaluated* (but false on plain properties),
// $dynamicRef, references to elsewhere, unknown formats, unknown keywords.
#pragma once

#include <optional>
#include <unordered_map>

#include "base/json.h"
#include "base/result.h"
#include "grammar/grammar.h"
#include "grammar/numbers.h"
#include "grammar/regex.h"
#include "grammar/rules.h"

namespace argent::grammar {

// Parses a JSON document after checking its size (1 MB), nesting (64) and number of keys (10000).
Result<Json> parse_schema(std::string_view text);

class SchemaRules {
 public:
  // The document must outlive this. `base` is the path that "#" in messages stands for ("#", "#/tools/0/parameters").
  SchemaRules(Rules& rules, const Json& document, const SchemaOptions& options, std::string base = "#");
  Result<Expr> lower();  // the whole document
  Expr any_object();     // {"type": "object"}

  // The properties of a document that is an object, for arguments that are not one JSON text. unsupported: says more of
  // the object than which there are.
  struct Property {
    std::string name;
    bool required;
    bool is_text;               // "type" is or has "string": spelled as it is, without quotes and escapes
    std::optional<Expr> value;  // nothing: any text
  };
  Result<std::vector<Property>> properties();

 private:
  // schema_merge.cc: one schema without $ref and allOf that says the same at its top level.
  Result<Json> flatten(const Json& schema, const std::string& path, int depth);
  Result<Json> merge(Json a, const Json& b, const std::string& path);
  Status check_keywords(const Json& schema, const std::string& path) const;
  Result<const Json*> resolve(const Json& ref, const std::string& path) const;

  Result<Expr> lower(const Json& schema, const std::string& path);
  Result<Expr> lower_flat(const Json& flat, const std::string& path);
  Result<Expr> lower_branches(const Json& flat, const char* keyword, const std::string& path);
  Result<Expr> lower_type(const std::string& type, const Json& flat, const std::string& path);
  Result<Expr> lower_enum(const Json& flat, const std::string& path);
  Result<Expr> lower_array(const Json& flat, const std::string& path);
  Result<Expr> lower_object(const Json& flat, const std::string& path);
  // The keys and values beyond the listed properties; nothing if there may be none.
  Result<std::optional<Expr>> further_property(const Json& flat, const std::vector<std::string>& listed,
                                               const std::string& path);
  Expr key_except(const std::vector<std::string>& names);
  Result<Expr> lower_string(const Json& flat, const std::string& path);
  Result<std::optional<Expr>> lower_text(const Json& schema, const std::string& path);
  // The characters of a string with a pattern or a format; nothing where it has neither.
  Result<std::optional<Expr>> matching(const Json& flat, Regex::Spelling spelling, const std::string& path);
  Result<Expr> lower_number(const Json& flat, bool integer, const std::string& path);
  Expr value_literal(const Json& value);
  Expr any_value();
  Expr any_string();
  Expr space();
  Expr comma() { return rules_.seq({space(), rules_.literal(","), space()}); }
  Error error(Code code, const std::string& path, const std::string& what) const;

  Rules& rules_;
  const Json& document_;
  SchemaOptions options_;
  std::string base_;
  int depth_ = 0;   // of schemas being lowered
  int merges_ = 0;  // in all: a small document can ask for very many
  // Rules of schemas by their text, so that a schema met again, recursion included, is one rule.
  struct Known {
    RuleId rule;
    bool open;  // being lowered
    int level;  // how many objects and arrays were open then
  };
  std::unordered_map<std::string, Known> known_;
  int level_ = 0;
  RuleId any_ = -1, string_ = -1, object_ = -1, array_ = -1;
  Expr space_ = -1;
};

// What may stand between two parts of JSON: SchemaOptions.
Expr json_space(Rules& rules, int max_indent);

// schema_merge.cc: a keyword that says nothing of the text; a schema that both hold.
bool is_annotation(const std::string& keyword);
Json conjunction(Json a, Json b);
// The number of a keyword as it is written; what check_keywords let through.
Result<std::optional<Bound>> bound_of(const Json& flat, bool low);
std::vector<std::string> types_of(const Json& flat);

// strings.cc: the pattern of a format; null if the format has none because it only annotates ("password"), an error if
// the format is not known.
Result<const char*> format_pattern(const std::string& format);
// The escapes of a JSON string, in all their spellings.
Expr json_escape(Rules& rules);

}  // namespace argent::grammar
