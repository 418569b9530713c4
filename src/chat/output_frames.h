// Blocks of text that hold calls: from the byte behind a style's opening mark to where they end.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "chat/output.h"
#include "chat/output_json.h"

namespace argent::output {

// Reads one byte at a time and none twice: a block that went wrong is text, and nothing in it is looked at again.
class Frame {
 public:
  virtual ~Frame() = default;
  virtual Verdict feed(char c) = 0;
  virtual bool begins_thought() const { return false; }
};

enum class FrameKind : uint8_t {
  json,      // objects as JsonCalls reads them
  python,    // as read_python_calls reads them, or objects
  mistral,   // an array of objects, or name[ARGS]{...}, perhaps with [CALL_ID]id between
  deepseek,  // one call or several, each between its own marks
  gemma,     // call:name{...}
  atem,      // <atem:invoke name="..."> with one <atem:parameter name="..."> an argument
  header,    // of a message: " to=recipient<|message|>"; no calls
};

// What opens a block and what closes it.
struct Opening {
  std::string_view mark;
  FrameKind kind = FrameKind::json;
  std::string_view closer;  // empty: the calls end by themselves
  bool at_start = false;    // only where nothing but white space, a thought or a call came before
  bool inside = false;      // the mark is the block's first byte too
};

// None is the beginning of another.
std::vector<Opening> openings(ToolStyle style);

// calls and tools must outlive the frame. tools: the request's, in OpenAI's form.
std::unique_ptr<Frame> make_frame(const Opening& opening, Calls& calls, const Json& tools);

std::unique_ptr<Frame> make_atem_frame(Calls& calls, const Json& tools);
std::unique_ptr<Frame> make_header_frame();

// The object with the name and the parameters of one tool; nullptr: tool has none.
const Json* tool_function(const Json& tool);
// The names of the functions in the request's tools; nothing where tools is no such list.
std::set<std::string, std::less<>> tool_names(const Json& tools);

}  // namespace argent::output
