// The values of template expressions, with Python's meaning of truth, equality, order, hash, str and repr.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "chat/meter.h"
#include "chat/text.h"

namespace argent::jinja {

enum class Kind : uint8_t {
  missing,  // a variable nobody has set; never the value of an expression
  undefined,
  none,
  boolean,
  integer,
  real,
  string,
  list,
  tuple,
  dict,
  range,
  view,      // dict.keys(), .values(), .items()
  iterator,  // one pass: what map, select, reversed... return
  space,     // namespace()
  loop,
  macro,
  function,  // globals, bound methods
  cycler,
  joiner,
};

class Value;

// What a value refers to. Freed memory goes back to the meter of its render; constants of the parser have none.
struct Object {
  Object() = default;
  Object(const Object&) = delete;
  virtual ~Object() {
    if (meter) meter->release(charged);
  }
  virtual std::string label() const { return "<object>"; }  // its repr, for the kinds that have no literal form
  // Hands over the values that an assignment can change, so that what refers to itself can be freed.
  virtual void drop(std::vector<Value>&) {}
  Meter* meter = nullptr;
  size_t charged = 0;
  uint32_t depth = 0;  // of containers inside this one, bounded so that nothing recursive runs out of stack
};

template <class T>
using Ptr = std::shared_ptr<T>;

struct StringObject;
struct SequenceObject;
struct DictObject;

class Value {
 public:
  Value() : kind_(Kind::missing) {}
  static Value none() { return Value(Kind::none); }
  static Value boolean(bool b) {
    Value v(Kind::boolean);
    v.integer_ = b;
    return v;
  }
  static Value integer(int64_t i) {
    Value v(Kind::integer);
    v.integer_ = i;
    return v;
  }
  static Value real(double d) {
    Value v(Kind::real);
    v.real_ = d;
    return v;
  }
  Value(Kind kind, Ptr<const Object> object) : kind_(kind), object_(std::move(object)) {}

  Kind kind() const { return kind_; }
  bool is(Kind k) const { return kind_ == k; }
  bool is_number() const { return is(Kind::boolean) || is(Kind::integer) || is(Kind::real); }
  bool is_integral() const { return is(Kind::boolean) || is(Kind::integer); }  // bool is an int in Python
  bool is_sequence() const { return is(Kind::list) || is(Kind::tuple); }

  bool as_bool() const { return integer_ != 0; }
  int64_t as_int() const { return integer_; }  // boolean too
  double as_real() const { return is(Kind::real) ? real_ : static_cast<double>(integer_); }
  const Text& text() const;
  bool markup() const;
  const std::vector<Value>& items() const;
  const DictObject& dict() const;

  const Object* object() const { return object_.get(); }
  const Ptr<const Object>& object_ptr() const { return object_; }
  template <class T>
  const T& as() const {
    return *static_cast<const T*>(object_.get());
  }
  // For the objects that change: namespaces, loops, iterators, cyclers, joiners.
  template <class T>
  T& mut() const {
    return *const_cast<T*>(static_cast<const T*>(object_.get()));
  }
  uint32_t depth() const { return object_ ? object_->depth : 0; }

 private:
  explicit Value(Kind kind) : kind_(kind) {}

  Kind kind_;
  union {
    int64_t integer_ = 0;
    double real_;
  };
  Ptr<const Object> object_;
};

struct UndefinedObject : Object {
  std::string why;
};

struct StringObject : Object {
  Text text;
  bool markup = false;  // |safe, |escape: markupsafe's Markup, which escapes what is joined to it
};

struct SequenceObject : Object {
  std::vector<Value> items;
  bool from_input = false;  // its brackets and commas count as input when it is printed
  bool group = false;       // a tuple of groupby: has .grouper and .list
};

// Keys in order of insertion. Few keys are searched in order, many through the index.
struct DictObject : Object {
  std::vector<std::pair<Value, Value>> entries;
  std::unordered_multimap<uint64_t, uint32_t> index;  // hash of the key to its entry
  bool from_input = false;

  const Value* find(std::string_view key) const;  // string keys only
  Result<const Value*> find(const Value& key, Meter& meter) const;
  Status set(const Value& key, Value value, Meter& meter);
};

struct RangeObject : Object {
  int64_t start = 0, stop = 0, step = 1;
  int64_t length() const;
  int64_t at(int64_t i) const { return start + i * step; }
};

struct ViewObject : Object {
  enum Which { keys, values, items } which = keys;
  Value dict;
};

struct SpaceObject : Object {
  std::vector<std::pair<std::string, Value>> attributes;
  Value* find(std::string_view name);
  void drop(std::vector<Value>& out) override;
};

inline const Text& Value::text() const { return as<StringObject>().text; }
inline bool Value::markup() const { return is(Kind::string) && as<StringObject>().markup; }
inline const std::vector<Value>& Value::items() const { return as<SequenceObject>().items; }
inline const DictObject& Value::dict() const { return as<DictObject>(); }

// Takes `bytes` from the meter for a new object; gives an error when they are not there or the object is too deep.
Status charge(Object& object, size_t bytes, uint32_t depth, Meter& meter);

Result<Value> make_string(Text text, Meter& meter, bool markup = false);
Result<Value> make_string(std::string_view bytes, Meter& meter);  // of the template
Result<Value> make_sequence(Kind kind, std::vector<Value> items, Meter& meter, bool from_input = false);
Result<Value> make_dict(std::vector<std::pair<Value, Value>> entries, Meter& meter);  // later keys win
Result<Value> finish_dict(Ptr<DictObject> dict, Meter& meter);
Value make_undefined(std::string why);
// Of a character or short string that cannot fail the limits: constants of the parser.
Value constant_string(std::string bytes);

std::string_view type_name(const Value& v);  // as Python names it: "str", "NoneType", ...

bool truthy(const Value& v);
Result<bool> equal(const Value& a, const Value& b, Meter& meter);
// a < b (or a <= b); an error where Python has a TypeError.
Result<bool> less(const Value& a, const Value& b, Meter& meter, bool or_equal = false);
// -1, 0, 1; nullopt when either is NaN.
std::optional<int> compare_numbers(const Value& a, const Value& b);
Result<uint64_t> hash(const Value& v, Meter& meter);  // an error for lists and dicts
uint64_t hash_string(std::string_view bytes);

// str(v) and repr(v), with marks.
Result<Text> to_text(const Value& v, Meter& meter);
Status append_repr(Text& out, const Value& v, Meter& meter, bool from_input = false);
std::string real_repr(double d);
void append_string_repr(Text& out, const Text& text, bool from_input = false);

}  // namespace argent::jinja
