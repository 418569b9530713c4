#include "chat/output_frames.h"

#include "chat/output_literals.h"

namespace argent::output {
namespace {

constexpr std::string_view kCallBegin = "<｜tool▁call▁begin｜>", kCallEnd = "<｜tool▁call▁end｜>";
constexpr std::string_view kCallsBegin = "<｜tool▁calls▁begin｜>", kCallsEnd = "<｜tool▁calls▁end｜>";
constexpr std::string_view kSeparator = "<｜tool▁sep｜>";

// One of a few texts, byte by byte.
class Literal {
 public:
  void expect(std::vector<std::string_view> texts) {
    texts_ = std::move(texts);
    matched_ = 0;
    found_ = -1;
  }
  // false: none of them. No text may be the beginning of another.
  bool feed(char c) {
    bool good = false;
    for (size_t i = 0; i < texts_.size(); ++i) {
      std::string_view& t = texts_[i];
      if (t.size() <= matched_ || t[matched_] != c) {
        t = {};
        continue;
      }
      good = true;
      if (t.size() == matched_ + 1) found_ = static_cast<int>(i);
    }
    ++matched_;
    return good;
  }
  bool begun() const { return matched_ > 0; }
  int found() const { return found_; }  // which one is complete, or -1

 private:
  std::vector<std::string_view> texts_;
  size_t matched_ = 0;
  int found_ = -1;
};

// White space, then the closer.
class Closer {
 public:
  explicit Closer(std::string_view text) : needed_(!text.empty()) { literal_.expect({text}); }
  bool needed() const { return needed_; }
  Verdict feed(char c) {
    if (!literal_.begun() && is_space(c)) return Verdict::more;
    if (!literal_.feed(c)) return Verdict::bad;
    return literal_.found() < 0 ? Verdict::more : Verdict::end;
  }

 private:
  bool needed_;
  Literal literal_;
};

class JsonFrame : public Frame {
 public:
  JsonFrame(Calls& calls, std::string_view closer) : json_(calls), closer_(closer) {}
  Verdict feed(char c) override {
    if (complete_) return closer_.feed(c);
    if (!begun_ && is_space(c)) return Verdict::more;
    begun_ = true;
    Verdict v = json_.feed(c);
    complete_ = v == Verdict::end;
    return complete_ && closer_.needed() ? Verdict::more : v;
  }

 private:
  JsonCalls json_;
  Closer closer_;
  bool begun_ = false, complete_ = false;
};

// Python's calls: where they end is found by quotes and brackets, what they say when they have ended.
class PythonFrame : public Frame {
 public:
  PythonFrame(Calls& calls, std::string_view closer) : calls_(calls), json_(calls, closer), closer_(closer) {}

  Verdict feed(char c) override {
    if (is_json_) return json_.feed(c);
    if (closing_) {
      Verdict v = closer_.feed(c);
      return v == Verdict::end ? finish() : v;
    }
    if (!begun_) {
      if (is_space(c)) return Verdict::more;
      if (c == '{') {
        is_json_ = true;
        if (list_) json_.feed('[');
        return json_.feed(c);
      }
      if (c == '[' && !list_) {
        list_ = true;
        text_ = stack_ = "[";
        return Verdict::more;
      }
      if (!is_name(c)) return Verdict::bad;
      begun_ = true;
    }
    text_ += c;
    return byte(c);
  }

 private:
  enum class Quote : uint8_t { none, opened, opened_twice, single, triple };

  Verdict byte(char c) {
    if (quote_ != Quote::none) {
      if (quoted(c)) return Verdict::more;
      if (quote_ != Quote::none) return Verdict::bad;
    }
    if (stack_.size() == static_cast<size_t>(list_)) return between_calls(c);
    if (c == '"' || c == '\'') {
      mark_ = c;
      quote_ = Quote::opened;
    } else if (c == '(' || c == '[' || c == '{') {
      if (stack_.size() > kDepth) return Verdict::bad;
      stack_ += c;
    } else if (c == ')' || c == ']' || c == '}') {
      if (stack_.back() != (c == ')' ? '(' : c == ']' ? '[' : '{')) return Verdict::bad;
      stack_.pop_back();
    }
    return Verdict::more;
  }

  // Outside of the parentheses of calls.
  Verdict between_calls(char c) {
    if (is_name(c)) {
      if (!in_name_) name_.clear();
      in_name_ = true;
      name_ += c;
      return name_.size() > kLongestName ? Verdict::bad : Verdict::more;
    }
    in_name_ = false;
    if (c == '(') {
      if (!calls_.known(name_)) calls_.doom();
      name_.clear();
      stack_ += c;
      return Verdict::more;
    }
    if (c == ']' && list_) {
      closing_ = true;
      return closer_.needed() ? Verdict::more : finish();
    }
    if (is_space(c) || c == ',' || c == ';') return Verdict::more;
    if (list_ || !closer_.needed()) return Verdict::bad;
    text_.pop_back();
    closing_ = true;
    return closer_.feed(c);
  }

  // Whether c is a byte of the string; false: it comes behind its end, or cannot be in it.
  bool quoted(char c) {
    switch (quote_) {
      case Quote::opened:
        quote_ = c == mark_ ? Quote::opened_twice : Quote::single;
        if (c == mark_) return true;
        break;
      case Quote::opened_twice:  // an empty string, or three quotes
        quote_ = c == mark_ ? Quote::triple : Quote::none;
        run_ = 0;
        return c == mark_;
      default:
        break;
    }
    if (escaped_) {
      escaped_ = false;
      run_ = 0;
    } else if (c == '\\') {
      escaped_ = true;
      run_ = 0;
    } else if (c == mark_) {
      if (quote_ == Quote::single || ++run_ == 3) quote_ = Quote::none;
      return true;
    } else {
      run_ = 0;
      if (c == '\n' && quote_ == Quote::single) return false;
    }
    return true;
  }

  Verdict finish() {
    if (!calls_.doomed && !read_python_calls(text_, calls_)) calls_.doom();
    return Verdict::end;
  }

  Calls& calls_;
  JsonFrame json_;
  Closer closer_;
  bool is_json_ = false, list_ = false, begun_ = false, closing_ = false;
  std::string text_, stack_, name_;
  bool in_name_ = false;
  Quote quote_ = Quote::none;
  char mark_ = 0;
  bool escaped_ = false;
  int run_ = 0;  // of quotes that may be the closing three
};

// A name, white space, and the object with its arguments: what Mistral's and DeepSeek's forms share.
class NamedObject {
 public:
  explicit NamedObject(Calls& calls) : calls_(calls) {}
  void begin(std::string name) {
    if (!calls_.known(name)) calls_.doom();
    calls_.calls.push_back({std::move(name), {}});
    scan_ = {};
  }
  Verdict feed(char c) {
    if ((scan_.depth() == 0 && c != '{') || !scan_.feed(c)) return Verdict::bad;
    if (!calls_.doomed) calls_.calls.back().arguments += c;
    return scan_.done() ? Verdict::end : Verdict::more;
  }

 private:
  Calls& calls_;
  JsonScan scan_;
};

class MistralFrame : public Frame {
 public:
  explicit MistralFrame(Calls& calls) : array_(calls), object_(calls) {}
  Verdict feed(char c) override {
    switch (at_) {
      case At::begin:
        if (is_space(c)) return Verdict::more;
        if (c == '[') {
          at_ = At::array;
          return array_.feed(c);
        }
        at_ = At::name;
        [[fallthrough]];
      case At::name:
        if (is_name(c)) {
          name_ += c;
          return name_.size() > kLongestName ? Verdict::bad : Verdict::more;
        }
        if (name_.empty() || is_space(c)) return Verdict::bad;
        object_.begin(name_);
        if (c == '{') {
          at_ = At::object;
          return object_.feed(c);
        }
        at_ = At::mark;
        mark_.expect({"[ARGS]", "[CALL_ID]"});
        [[fallthrough]];
      case At::mark:
        if (!mark_.feed(c)) return Verdict::bad;
        if (mark_.found() >= 0) at_ = mark_.found() == 0 ? At::gap : At::id;
        return Verdict::more;
      case At::id:  // the model's own: the answer has the server's
        if (is_name(c)) return Verdict::more;
        at_ = At::mark;
        mark_.expect({"[ARGS]"});
        return feed(c);
      case At::gap:
        if (is_space(c)) return Verdict::more;
        at_ = At::object;
        [[fallthrough]];
      case At::object:
        return object_.feed(c);
      case At::array:
        return array_.feed(c);
    }
    return Verdict::bad;
  }

 private:
  enum class At : uint8_t { begin, name, mark, id, gap, object, array };
  At at_ = At::begin;
  JsonCalls array_;
  NamedObject object_;
  std::string name_;
  Literal mark_;
};

// Two generations: "function<sep>name\n```json\n{...}\n```" and "name<sep>{...}".
class DeepseekFrame : public Frame {
 public:
  explicit DeepseekFrame(Calls& calls) : calls_(calls), object_(calls) { expect_between(); }
  Verdict feed(char c) override {
    switch (at_) {
      case At::between:
        if (is_space(c) && !mark_.begun()) return Verdict::more;
        if (!mark_.feed(c)) return Verdict::bad;
        if (mark_.found() < 0) return Verdict::more;
        if (mark_.found() == 1) return calls_.calls.empty() ? Verdict::bad : Verdict::end;
        at_ = At::first_name;
        names_[0].clear();
        names_[1].clear();
        return Verdict::more;
      case At::first_name:
        if (is_name(c)) return add(0, c);
        at_ = At::separator;
        mark_.expect({kSeparator});
        [[fallthrough]];
      case At::separator:
        if (!mark_.feed(c)) return Verdict::bad;
        if (mark_.found() >= 0) at_ = At::second_name;
        return Verdict::more;
      case At::second_name:
        if (is_name(c)) return add(1, c);
        if (names_[1].empty() && is_space(c)) return Verdict::more;
        object_.begin(names_[1].empty() ? names_[0] : names_[1]);
        at_ = At::gap;
        fence_ = 0;
        [[fallthrough]];
      case At::gap:
        return gap(c);
      case At::object: {
        Verdict v = object_.feed(c);
        if (v != Verdict::end) return v;
        at_ = fence_ ? At::fence_end : At::end;
        mark_.expect({fence_ ? "```" : kCallEnd});
        return Verdict::more;
      }
      case At::fence_end:
      case At::end:
        if (is_space(c) && !mark_.begun()) return Verdict::more;
        if (!mark_.feed(c)) return Verdict::bad;
        if (mark_.found() < 0) return Verdict::more;
        if (at_ == At::end) {
          expect_between();
        } else {
          at_ = At::end;
          mark_.expect({kCallEnd});
        }
        return Verdict::more;
    }
    return Verdict::bad;
  }

 private:
  enum class At : uint8_t { between, first_name, separator, second_name, gap, object, fence_end, end };

  void expect_between() {
    at_ = At::between;
    mark_.expect({kCallBegin, kCallsEnd});
  }
  Verdict add(int i, char c) {
    names_[i] += c;
    return names_[i].size() > kLongestName ? Verdict::bad : Verdict::more;
  }
  // "\n```json\n", "```\n", or nothing.
  Verdict gap(char c) {
    constexpr std::string_view kFence = "```json";
    if (c == '{' && (fence_ == 0 || fence_ == 3 || fence_ == kFence.size())) {
      at_ = At::object;
      return object_.feed(c);
    }
    if (fence_ < kFence.size() && c == kFence[fence_]) {
      ++fence_;
      return Verdict::more;
    }
    return is_space(c) && (fence_ == 0 || fence_ == 3 || fence_ == kFence.size()) ? Verdict::more : Verdict::bad;
  }

  Calls& calls_;
  NamedObject object_;
  At at_ = At::between;
  Literal mark_;
  std::string names_[2];
  size_t fence_ = 0;  // bytes of the opening fence
};

class GemmaFrame : public Frame {
 public:
  GemmaFrame(Calls& calls, std::string_view closer) : calls_(calls), closer_(closer) { prefix_.expect({"call:"}); }
  Verdict feed(char c) override {
    if (closing_) {
      Verdict v = closer_.feed(c);
      if (v != Verdict::end || calls_.doomed) return v;
      Calls::Call call{name_, {}};
      if (!read_gemma_arguments(text_, call.arguments)) calls_.doom();
      calls_.calls.push_back(std::move(call));
      return v;
    }
    if (prefix_.found() < 0) return (is_space(c) && !prefix_.begun()) || prefix_.feed(c) ? Verdict::more : Verdict::bad;
    if (text_.empty() && c != '{') {
      name_ += c;
      return is_name(c) && name_.size() <= kLongestName ? Verdict::more : Verdict::bad;
    }
    if (text_.empty() && !calls_.known(name_)) calls_.doom();
    text_ += c;
    if (!quote_.empty()) {
      if (escaped_ || (c == '\\' && quote_ == "\"")) {
        escaped_ = !escaped_;
      } else if (text_.size() >= quoted_from_ + quote_.size() && text_.ends_with(quote_)) {
        quote_ = {};
      }
      return Verdict::more;
    }
    for (std::string_view quote : {"<escape>", "<|\"|>"}) {
      if (c == '>' && text_.ends_with(quote)) open_quote(quote);
    }
    if (c == '"' && !text_.ends_with("<|\"")) open_quote("\"");
    if (c == '{' || c == '[') {
      if (stack_.size() == kDepth) return Verdict::bad;
      stack_ += c;
    } else if (c == '}' || c == ']') {
      if (stack_.empty() || stack_.back() != (c == '}' ? '{' : '[')) return Verdict::bad;
      stack_.pop_back();
      closing_ = stack_.empty();
    }
    return Verdict::more;
  }

 private:
  void open_quote(std::string_view quote) {
    quote_ = quote;
    quoted_from_ = text_.size();
  }

  Calls& calls_;
  Closer closer_;
  Literal prefix_;
  std::string name_, text_, stack_;
  std::string_view quote_;  // the string that is open
  size_t quoted_from_ = 0;
  bool escaped_ = false, closing_ = false;
};

}  // namespace

std::vector<Opening> openings(ToolStyle style) {
  using K = FrameKind;
  constexpr bool kStart = true, kInside = true;
  switch (style) {
    case ToolStyle::none:
      return {};
    case ToolStyle::hermes:
      return {{"<tool_call>", K::json, "</tool_call>"}};
    case ToolStyle::llama3:
      return {{"<|python_tag|>", K::json, ""}, {"{", K::json, "", kStart, kInside}};
    case ToolStyle::mistral:
      return {{"[TOOL_CALLS]", K::mistral, ""}};
    case ToolStyle::gemma:
      return {{"```tool_code", K::python, "```"},
              {"```json", K::json, "```"},
              {"<start_function_call>", K::gemma, "<end_function_call>"},
              {"<|tool_call>", K::gemma, "<tool_call|>"},
              {"[", K::python, "", kStart, kInside},
              {"{", K::json, "", kStart, kInside}};
    case ToolStyle::deepseek:
      return {{kCallsBegin, K::deepseek, ""}};
    case ToolStyle::llama4:
      return {{"<|python_start|>", K::python, "<|python_end|>"},
              {"[", K::python, "", kStart, kInside},
              {"{", K::json, "", kStart, kInside}};
    case ToolStyle::json:
      return {{"```json", K::json, "```"}, {"{", K::json, "", false, kInside}, {"[", K::json, "", false, kInside}};
    case ToolStyle::atem:
      return {{"<atem:function_calls>", K::atem, ""}};
  }
  return {};
}

std::unique_ptr<Frame> make_frame(const Opening& opening, Calls& calls, const Json& tools) {
  switch (opening.kind) {
    case FrameKind::json:
      return std::make_unique<JsonFrame>(calls, opening.closer);
    case FrameKind::python:
      return std::make_unique<PythonFrame>(calls, opening.closer);
    case FrameKind::mistral:
      return std::make_unique<MistralFrame>(calls);
    case FrameKind::deepseek:
      return std::make_unique<DeepseekFrame>(calls);
    case FrameKind::gemma:
      return std::make_unique<GemmaFrame>(calls, opening.closer);
    case FrameKind::atem:
      return make_atem_frame(calls, tools);
    case FrameKind::header:
      return make_header_frame();
  }
  return nullptr;
}

const Json* tool_function(const Json& tool) {
  if (!tool.is_object()) return nullptr;
  auto function = tool.find("function");
  const Json& f = function == tool.end() ? tool : *function;
  auto name = f.is_object() ? f.find("name") : f.end();
  return f.is_object() && name != f.end() && name->is_string() ? &f : nullptr;
}

std::set<std::string, std::less<>> tool_names(const Json& tools) {
  std::set<std::string, std::less<>> names;
  if (!tools.is_array()) return names;
  for (const Json& tool : tools) {
    const Json* f = tool_function(tool);
    if (f && !(*f)["name"].get_ref<const std::string&>().empty()) names.insert((*f)["name"].get<std::string>());
  }
  return names;
}

}  // namespace argent::output
