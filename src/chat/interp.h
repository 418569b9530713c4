// Runs a parsed template: statements write into a Text, expressions give values.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "chat/library.h"
#include "chat/parser.h"
#include "chat/value.h"

namespace argent::jinja {

// The variables of one scope while it is alive.
struct Scope : Object {
  Ptr<Scope> outer;
  std::vector<Value> slots;
  bool kept = false;
  void drop(std::vector<Value>& out) override {
    for (Value& v : slots) out.push_back(std::move(v));
    slots.assign(slots.size(), Value());
  }
};

struct Iterator : Object {
  explicit Iterator(std::function<Result<bool>(Value&)> step) : next_item(std::move(step)) {}
  std::string label() const override { return "<generator object>"; }
  std::function<Result<bool>(Value&)> next_item;  // false: it is over
  bool over = false;
  bool running = false;
};

struct FunctionObject : Object {
  std::function<Result<Value>(Interp&, Args&)> call;
  std::string name;
  bool is_class = false;
  std::string label() const override { return is_class ? "<class '" + name + "'>" : "<function " + name + ">"; }
};

struct MacroObject : Object {
  const MacroDecl* decl = nullptr;
  Ptr<Scope> scope;
  std::string label() const override {
    return "<Macro " + (decl->name.empty() ? "anonymous" : "'" + decl->name + "'") + ">";
  }
};

struct LoopObject : Object {
  Value iterable;
  Ptr<Iterator> items;
  const Stmt* stmt = nullptr;  // of a recursive loop, with the scope around it
  Ptr<Scope> scope;
  int64_t index0 = -1, depth0 = 0, length = -1;
  Value before, current, ahead, last_changed;
  std::string label() const override { return fmt::format("<LoopContext {}/{}>", index0 + 1, length); }
  void drop(std::vector<Value>& out) override {
    for (Value* v : {&iterable, &before, &current, &ahead, &last_changed}) out.push_back(std::exchange(*v, Value()));
    if (items) out.push_back(Value(Kind::iterator, std::move(items)));
    scope.reset();
  }
};

struct CyclerObject : Object {
  std::vector<Value> items;
  size_t position = 0;
};

struct JoinerObject : Object {
  Value separator;
  bool used = false;
};

class Interp {
 public:
  Interp(const Template::Parsed& parsed, const RenderOptions& options);
  ~Interp();
  Interp(const Interp&) = delete;

  Result<Rendered> run(const Json& context);

  // --- for the library
  Meter& meter() { return meter_; }
  const RenderOptions& options() const { return options_; }

  Result<Value> call(const Value& callee, Args& args);
  Result<Value> filter(std::string_view name, const Value& v, Args& args);  // by a name known only now
  Result<bool> test(std::string_view name, const Value& v, Args& args);
  Result<Value> attribute(const Value& v, std::string_view name);  // v.name
  Result<Value> item(const Value& v, const Value& key);            // v[key]
  // Python's getattr alone, without v[name]; nullopt: there is no such attribute.
  Result<std::optional<Value>> own_attribute(const Value& v, std::string_view name);
  Result<Value> slice(const Value& v, const Value& start, const Value& stop, const Value& step);
  Result<bool> contains(const Value& container, const Value& v);
  Result<Value> binary(BinaryOp op, const Value& a, const Value& b);

  bool iterable(const Value& v) const;
  Result<Ptr<Iterator>> iterate(const Value& v);
  Result<bool> next(Iterator& it, Value& out);
  Result<std::vector<Value>> items(const Value& v);
  Result<Value> make_iterator(uint32_t depth, std::function<Result<bool>(Value&)> step);
  Result<int64_t> length(const Value& v);  // an error where Python has a TypeError

  Result<Text> text(const Value& v) { return to_text(v, meter_); }
  Result<Value> string(Text text, bool markup = false) { return make_string(std::move(text), meter_, markup); }
  Result<Value> list(std::vector<Value> items) { return make_sequence(Kind::list, std::move(items), meter_); }
  Result<Value> tuple(std::vector<Value> items) { return make_sequence(Kind::tuple, std::move(items), meter_); }
  Result<Value> function(std::string name, std::function<Result<Value>(Interp&, Args&)> call, uint32_t depth = 0);

  template <class T>
  Result<Ptr<T>> make(size_t bytes, uint32_t depth) {
    auto object = std::make_shared<T>();
    ARGENT_TRY(charge(*object, bytes, depth, meter_));
    return object;
  }
  // Objects that may come to refer to themselves stay until the end, and are then taken apart.
  void keep(Ptr<Object> object) { kept_.push_back(std::move(object)); }

  // Counts one more level of recursion while it lives.
  struct Nested {
    explicit Nested(Interp& i) : interp(i) { ++interp.depth_; }
    ~Nested() { --interp.depth_; }
    Interp& interp;
  };
  Status check_depth() const;

 private:
  enum class Flow { normal, break_, continue_ };
  using Names = const Ptr<Scope>&;

  void define_globals();
  Result<Value> from_json(const Json& json, bool trusted);
  Result<Value> from_messages(const Json& json);

  Result<Ptr<Scope>> enter(const ScopeLayout& layout, Names outer);
  void reset(Scope& scope, const ScopeLayout& layout);
  Status located(const Expr& e, Error error);
  Error locate(Position at, const Error& error);

  Result<Flow> exec(const Block& block, Names scope, Text& out);
  Result<Flow> exec_stmt(const Stmt& s, Names scope, Text& out);
  Status output(const Stmt& s, Names scope, Text& out);
  Result<Flow> exec_captured(const Stmt& s, Names scope, Text& out);
  Result<Flow> exec_for(const Stmt& s, Names scope, const Value& iterable, int64_t depth, Text& out);
  Result<Flow> exec_with(const Stmt& s, Names scope, Text& out);
  Status exec_call_block(const Stmt& s, Names scope, Text& out);
  Result<Value> unpacked(const Expr& target, Names scope);
  Status assign(const Expr& target, Names scope, const Value& v);
  Result<Value> make_macro(const MacroDecl& decl, Names scope);
  Result<Value> call_macro(const MacroObject& macro, Args& args);
  Status write(Text& out, const Text& text);
  Status write_block(Text& out, const Value& v);

  Result<Value> eval(const Expr& e, Names scope);
  Result<Value> eval_node(const Expr& e, Names scope);
  Result<Value> eval_compare(const Expr& e, Names scope);
  Result<Value> eval_call(const Expr& e, Names scope, const Value* caller);
  Result<Value> eval_slice(const Expr& e, Names scope);
  Result<Value> eval_dict(const Expr& e, Names scope);
  Result<Args> eval_args(const CallArgs& args, Names scope);
  Result<std::vector<Value>> eval_all(const std::vector<ExprPtr>& exprs, Names scope);
  Result<bool> compare(CompareOp op, const Value& a, const Value& b);

  Result<std::optional<Value>> loop_attribute(const Value& v, std::string_view name);
  Result<Value> peek(LoopObject& loop);
  Result<int64_t> loop_length(LoopObject& loop);

  const Template::Parsed& parsed_;
  const RenderOptions& options_;
  Meter meter_;
  uint32_t depth_ = 0;
  bool located_ = false;  // the error on its way out has its position
  std::vector<std::pair<std::string, Value>> context_;
  std::vector<std::pair<std::string, Value>> globals_;
  Value block_text_;  // of the block whose filter is evaluated next
  std::vector<Ptr<Object>> kept_;
};

}  // namespace argent::jinja
