// Arguments that models write in other notations than JSON, turned into JSON text when a call is complete.
#pragma once

#include <string>
#include <string_view>

#include "chat/output_json.h"

namespace argent::output {

// name(key=value, ...), one or more: in a list, or one behind the other. Values are Python's literals: strings (plain
// or in triple quotes, with escapes), numbers, True, False, None (JSON's words too), lists, tuples, dicts with string
// keys. false: anything else, a positional argument, a key twice, a name that is no tool.
bool read_python_calls(std::string_view text, Calls& calls);

// {key:value, ...} as Gemma writes it: keys bare or quoted, strings between two <escape> or two <|"|>, or in JSON's
// quotes. Appends JSON.
bool read_gemma_arguments(std::string_view text, std::string& json);

}  // namespace argent::output
