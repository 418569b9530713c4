#include <algorithm>
#include <string>

#include "grammar/schema.h"

namespace argent::grammar {

namespace {

// Days that exist; 29 February in leap years.
#define ARGENT_DATE                                                                              \
  "(?:\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)" \
  "|02-(?:0[1-9]|1\\d|2[0-8]))"                                                                  \
  "|(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
#define ARGENT_TIME "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define ARGENT_BYTE "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define ARGENT_IPV4 "(?:" ARGENT_BYTE "\\.){3}" ARGENT_BYTE
// 8 labels of 30 characters stay below the 253 that a name may have.
#define ARGENT_LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,28}[A-Za-z0-9])?"
#define ARGENT_HOST ARGENT_LABEL "(?:\\." ARGENT_LABEL "){0,7}"
#define ARGENT_ATEXT "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,30}"
#define ARGENT_HEX4 "[0-9A-Fa-f]{1,4}"
#define ARGENT_PCHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
#define ARGENT_CLOCK "T(?:\\d{1,6}H(?:\\d{1,6}M(?:\\d{1,6}S)?)?|\\d{1,6}M(?:\\d{1,6}S)?|\\d{1,6}S)"

struct Format {
  const char* name;
  const char* pattern;  // null: says nothing of the text
};

// RFC 3339, 5321, 1123, 3986, 4122, 6901 and ISO 8601 durations, in the parts that models write.
constexpr Format kFormats[] = {
    {"date", "^" ARGENT_DATE "$"},
    {"time", "^" ARGENT_TIME "$"},
    {"date-time", "^" ARGENT_DATE "T" ARGENT_TIME "$"},
    {"duration",
     "^P(?:\\d{1,6}W|(?:\\d{1,6}Y(?:\\d{1,6}M(?:\\d{1,6}D)?)?|\\d{1,6}M(?:\\d{1,6}D)?|\\d{1,6}D)(?:" ARGENT_CLOCK
     ")?|" ARGENT_CLOCK ")$"},
    {"uuid", "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"},
    {"email", "^" ARGENT_ATEXT "(?:\\." ARGENT_ATEXT "){0,1}@" ARGENT_HOST "$"},
    {"hostname", "^" ARGENT_HOST "$"},
    {"ipv4", "^" ARGENT_IPV4 "$"},
    // In full, or with "::" after at most 3 groups and before at most 4.
    {"ipv6", "^(?:(?:" ARGENT_HEX4 ":){7}" ARGENT_HEX4 "|(?:" ARGENT_HEX4 "(?::" ARGENT_HEX4 "){0,2})?::(?:" ARGENT_HEX4
             "(?::" ARGENT_HEX4 "){0,3})?)$"},
    {"uri", "^[A-Za-z][A-Za-z0-9+.-]{0,15}:(?://" ARGENT_HOST "(?::\\d{1,5})?(?:/" ARGENT_PCHAR "*)*|" ARGENT_PCHAR
            "+(?:/" ARGENT_PCHAR "*)*)(?:\\?(?:" ARGENT_PCHAR "|[/?])*)?(?:#(?:" ARGENT_PCHAR "|[/?])*)?$"},
    {"json-pointer", "^(?:/(?:[^/~]|~[01])*)*$"},
    {"password", nullptr},
    {"text", nullptr},
};

}  // namespace

Result<const char*> format_pattern(const std::string& format) {
  for (const Format& f : kFormats)
    if (format == f.name) return f.pattern;
  return fail(Code::unsupported, "the format '{}' is not enforced", format);
}

Expr json_escape(Rules& rules) {
  const CharSet hex({{'0', '9'}, {'a', 'f'}, {'A', 'F'}});
  const CharSet letters(
      {{'"', '"'}, {'\\', '\\'}, {'/', '/'}, {'b', 'b'}, {'f', 'f'}, {'n', 'n'}, {'r', 'r'}, {'t', 't'}});
  // \u0000 is JSON, but ends the text of too many readers; half a surrogate pair is not Unicode.
  const Expr h = rules.chars(hex);
  const CharSet d({{'d', 'd'}, {'D', 'D'}});
  const auto four = [&](CharSet a, CharSet b) { return rules.seq({rules.chars(a), rules.chars(b), h, h}); };
  const CharSet nonzero = hex.minus(CharSet({{'0', '0'}}));
  const Expr zero = rules.literal("0");
  const Expr basic =
      rules.alt({four(hex.minus(d).minus(CharSet({{'0', '0'}})), hex), four(d, CharSet({{'0', '7'}})),
                 rules.seq({zero, rules.chars(nonzero), h, h}), rules.seq({zero, zero, rules.chars(nonzero), h}),
                 rules.seq({zero, zero, zero, rules.chars(nonzero)})});
  const Expr pair = rules.seq({four(d, CharSet({{'8', '9'}, {'a', 'b'}, {'A', 'B'}})), rules.literal("\\u"),
                               four(d, CharSet({{'c', 'f'}, {'C', 'F'}}))});
  return rules.seq({rules.literal("\\"),
                    rules.alt({rules.chars(letters), rules.seq({rules.literal("u"), rules.alt({basic, pair})})})});
}

}  // namespace argent::grammar
