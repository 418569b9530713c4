// Muse Glimmer's protocol: headers that say whom a message is for, and calls in tags that are parsed as text, not XML.
#include <algorithm>

#include "chat/output_frames.h"

namespace argent::output {
namespace {

constexpr std::string_view kMessage = "<|message|>", kValueEnd = "</atem:parameter>";

bool may_be_string(const Json& type) {
  if (type.is_array()) return std::find(type.begin(), type.end(), "string") != type.end();
  return type == "string";
}

class AtemFrame : public Frame {
 public:
  AtemFrame(Calls& calls, const Json& tools) : calls_(calls), tools_(tools) {}

  Verdict feed(char c) override {
    if (in_value_) {
      text_ += c;
      if (c != '>' || !text_.ends_with(kValueEnd)) return Verdict::more;
      in_value_ = false;
      text_.resize(text_.size() - kValueEnd.size());
      if (!calls_.doomed && !add_value()) calls_.doom();
      text_.clear();
      return Verdict::more;
    }
    if (text_.empty() && is_space(c)) return Verdict::more;
    if ((text_.empty() && c != '<') || text_.size() > kLongestName + 32) return Verdict::bad;
    text_ += c;
    if (c != '>') return Verdict::more;
    Verdict v = tag();
    text_.clear();
    return v;
  }

 private:
  // The name in <kind name="...">, empty when the tag is another.
  std::string named(std::string_view kind) const {
    std::string_view t = text_;
    std::string begin = "<atem:" + std::string(kind) + " name=\"";
    if (!t.starts_with(begin) || !t.ends_with("\">") || t.size() < begin.size() + 2) return {};
    return std::string(t.substr(begin.size(), t.size() - begin.size() - 2));
  }

  Verdict tag() {
    if (!in_call_) {
      if (text_ == "</atem:function_calls>") return any_ ? Verdict::end : Verdict::bad;
      std::string name = named("invoke");
      if (name.empty()) return Verdict::bad;
      in_call_ = any_ = true;
      if (!calls_.known(name)) calls_.doom();
      properties_ = find_properties(name);
      calls_.calls.push_back({std::move(name), "{"});
      seen_.clear();
      return Verdict::more;
    }
    if (text_ == "</atem:invoke>") {
      in_call_ = false;
      calls_.calls.back().arguments += '}';
      return Verdict::more;
    }
    key_ = named("parameter");
    if (key_.empty()) return Verdict::bad;
    in_value_ = true;
    return Verdict::more;
  }

  const Json* find_properties(const std::string& name) const {
    if (!tools_.is_array()) return nullptr;
    for (const Json& tool : tools_) {
      const Json* f = tool_function(tool);
      if (!f || (*f)["name"] != name) continue;
      auto parameters = f->find("parameters");
      if (parameters == f->end() || !parameters->is_object()) return nullptr;
      auto properties = parameters->find("properties");
      return properties != parameters->end() && properties->is_object() ? &*properties : nullptr;
    }
    return nullptr;
  }

  // Strings are written as they are, the rest is JSON; the tool's schema knows which. Without one, what is JSON is
  // JSON.
  bool add_value() {
    std::string& out = calls_.calls.back().arguments;
    if (!seen_.insert(key_).second) return false;
    if (out.size() > 1) out += ", ";
    if (!append_quoted(out, key_)) return false;
    out += ": ";
    const Json* type = nullptr;
    if (properties_) {
      auto property = properties_->find(key_);
      if (property != properties_->end() && property->is_object()) {
        auto found = property->find("type");
        if (found != property->end()) type = &*found;
      }
    }
    if (!(type && may_be_string(*type)) && is_json(text_)) {
      out += text_;
      return true;
    }
    return (!type || may_be_string(*type)) && append_quoted(out, text_);
  }

  Calls& calls_;
  const Json& tools_;
  std::string text_;  // of the tag or the value
  std::string key_;
  const Json* properties_ = nullptr;
  std::set<std::string> seen_;
  bool in_value_ = false, in_call_ = false, any_ = false;
};

class HeaderFrame : public Frame {
 public:
  Verdict feed(char c) override {
    constexpr std::string_view kTo = " to=";
    if (at_message_ == 0 && at_to_ < kTo.size() && c == kTo[at_to_]) {
      ++at_to_;
      return Verdict::more;
    }
    if (at_message_ == 0 && at_to_ == kTo.size() && c != '<') {
      recipient_ += c;
      return is_name(c) && recipient_.size() <= kLongestName ? Verdict::more : Verdict::bad;
    }
    bool may_begin = at_to_ == 0 || !recipient_.empty();
    if (!may_begin || c != kMessage[at_message_]) return Verdict::bad;
    return ++at_message_ == kMessage.size() ? Verdict::end : Verdict::more;
  }
  bool begins_thought() const override { return recipient_ == "self"; }

 private:
  size_t at_to_ = 0, at_message_ = 0;
  std::string recipient_;
};

}  // namespace

std::unique_ptr<Frame> make_atem_frame(Calls& calls, const Json& tools) {
  return std::make_unique<AtemFrame>(calls, tools);
}

std::unique_ptr<Frame> make_header_frame() { return std::make_unique<HeaderFrame>(); }

}  // namespace argent::output
