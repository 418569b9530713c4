// The filters, tests, methods and globals of the language, by name.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "chat/value.h"

namespace argent::jinja {

class Interp;

// The arguments of one call.
struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
  uint32_t depth() const;
};

using Filter = Result<Value> (*)(Interp&, const Value&, Args&);
using Test = Result<bool> (*)(Interp&, const Value&, Args&);
using Method = Result<Value> (*)(Interp&, const Value& self, Args&);

Filter find_filter(std::string_view name);  // null: there is none
Test find_test(std::string_view name);

// Python's attributes of the built-in types that are methods.
struct MethodEntry {
  std::string_view name;
  Method call;  // null: Python has it and we do not, which is an error once it is called
};
const MethodEntry* find_method(const Value& self, std::string_view name);

// Parts of those tables, one a file.
template <class F>
struct Named {
  std::string_view name;
  F call;
};
extern const std::vector<Named<Filter>> kTextFilters;
extern const std::vector<Named<Filter>> kListFilters;
extern const std::vector<Named<Filter>> kNumberFilters;
extern const std::vector<MethodEntry> kStringMethods;

// Arguments by parameter, in Python's way. Parameters that were not given are null.
class Bound {
 public:
  const Value* operator[](size_t i) const { return values_[i].is(Kind::missing) ? nullptr : &values_[i]; }
  bool flag(size_t i) const { return (*this)[i] && truthy(values_[i]); }

 private:
  friend Result<Bound> bind(std::string_view, const Args&, std::initializer_list<std::string_view>, size_t);
  std::vector<Value> values_;
};
Result<Bound> bind(std::string_view what, const Args& args, std::initializer_list<std::string_view> parameters,
                   size_t required);
// For what Python calls by position only.
Status expect_positional(std::string_view what, const Args& args, size_t least, size_t most);
// A bool or an int; `what` names it in the error.
Result<int64_t> integer_argument(const Value& v, std::string_view what);
Result<const Text*> string_argument(const Value& v, std::string_view what);

// "..." % values and "...".format(values).
Result<Value> printf_format(Interp& interp, const Value& format, const Value& values);
Result<Value> printf_format(Interp& interp, const Value& format, Args& args);
Result<Value> str_format(Interp& interp, const Value& format, Args& args);

// json.dumps, with the arguments of transformers' tojson.
Result<Value> tojson(Interp& interp, const Value& value, Args& args);

// Shared by filters and methods.
Result<Value> split_lines(Interp& interp, const Value& s, bool keep_ends);
Result<Value> replaced(Interp& interp, const Value& s, const Text& from, const Text& to, int64_t count);
Result<Value> case_mapped(Interp& interp, const Value& s,
                          std::string_view how);  // upper lower capitalize title fold swap
Text html_escaped(const Text& text);

}  // namespace argent::jinja
