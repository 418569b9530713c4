// The methods of lists, tuples, dicts and numbers, and where all of them are looked up.
#include <algorithm>

#include "chat/interp.h"

namespace argent::jinja {
namespace {

Result<Value> sequence_count(Interp& interp, const Value& v, Args& args) {
  ARGENT_TRY(expect_positional("count()", args, 1, 1));
  ARGENT_LET(std::vector<Value> items, interp.items(v));
  int64_t n = 0;
  for (const Value& item : items) {
    ARGENT_LET(bool same, equal(item, args.positional[0], interp.meter()));
    n += same;
  }
  return Value::integer(n);
}

Result<Value> sequence_index(Interp& interp, const Value& v, Args& args) {
  ARGENT_TRY(expect_positional("index()", args, 1, 3));
  ARGENT_LET(std::vector<Value> items, interp.items(v));
  int64_t n = static_cast<int64_t>(items.size()), bounds[2] = {0, n};
  for (size_t i = 1; i < args.positional.size(); ++i) {
    ARGENT_LET(int64_t bound, integer_argument(args.positional[i], "an index"));
    bounds[i - 1] = std::clamp<int64_t>(bound < 0 ? bound + n : bound, 0, n);
  }
  for (int64_t i = bounds[0]; i < bounds[1]; ++i) {
    ARGENT_LET(bool same, equal(items[static_cast<size_t>(i)], args.positional[0], interp.meter()));
    if (same) return Value::integer(i);
  }
  return fail(Code::invalid, "the value is not in the sequence");
}

Result<Value> same_value(Interp&, const Value& v, Args& args) {  // copies of what nothing can change
  ARGENT_TRY(expect_positional("copy()", args, 0, 0));
  return v;
}

Result<Value> dict_get(Interp& interp, const Value& v, Args& args) {
  ARGENT_TRY(expect_positional("get()", args, 1, 2));
  ARGENT_LET(const Value* found, v.dict().find(args.positional[0], interp.meter()));
  if (found) return *found;
  return args.positional.size() > 1 ? args.positional[1] : Value::none();
}

Result<Value> dict_view(Interp& interp, const Value& v, Args& args, ViewObject::Which which) {
  ARGENT_TRY(expect_positional("keys(), values() or items()", args, 0, 0));
  ARGENT_LET(Ptr<ViewObject> view, interp.make<ViewObject>(sizeof(ViewObject), v.depth() + 1));
  view->which = which;
  view->dict = v;
  return Value(Kind::view, std::move(view));
}

Result<Value> is_whole(Interp&, const Value& v, Args& args) {
  ARGENT_TRY(expect_positional("is_integer()", args, 0, 0));
  double d = v.as_real();
  return Value::boolean(d == static_cast<double>(static_cast<int64_t>(std::clamp(d, -9e18, 9e18))) || d > 9e18 ||
                        d < -9e18);
}

const std::vector<MethodEntry> kListMethods = {
    {"copy", same_value}, {"count", sequence_count}, {"index", sequence_index}};
const std::vector<MethodEntry> kTupleMethods = {{"count", sequence_count}, {"index", sequence_index}};
const std::vector<MethodEntry> kDictMethods = {
    {"copy", same_value},
    {"fromkeys", nullptr},
    {"get", dict_get},
    {"items", [](Interp& i, const Value& v, Args& a) { return dict_view(i, v, a, ViewObject::items); }},
    {"keys", [](Interp& i, const Value& v, Args& a) { return dict_view(i, v, a, ViewObject::keys); }},
    {"values", [](Interp& i, const Value& v, Args& a) { return dict_view(i, v, a, ViewObject::values); }},
};
const std::vector<MethodEntry> kIntMethods = {{"as_integer_ratio", nullptr}, {"bit_count", nullptr},
                                              {"bit_length", nullptr},       {"conjugate", same_value},
                                              {"from_bytes", nullptr},       {"to_bytes", nullptr}};
const std::vector<MethodEntry> kRealMethods = {{"as_integer_ratio", nullptr},
                                               {"conjugate", same_value},
                                               {"fromhex", nullptr},
                                               {"hex", nullptr},
                                               {"is_integer", is_whole}};
const std::vector<MethodEntry> kViewMethods = {{"isdisjoint", nullptr}, {"mapping", nullptr}};

}  // namespace

const MethodEntry* find_method(const Value& self, std::string_view name) {
  const std::vector<MethodEntry>* table = nullptr;
  switch (self.kind()) {
    case Kind::string:
      table = &kStringMethods;
      break;
    case Kind::list:
      table = &kListMethods;
      break;
    case Kind::tuple:
    case Kind::range:
      table = &kTupleMethods;
      break;
    case Kind::dict:
      table = &kDictMethods;
      break;
    case Kind::boolean:
    case Kind::integer:
      table = &kIntMethods;
      break;
    case Kind::real:
      table = &kRealMethods;
      break;
    case Kind::view:
      table = &kViewMethods;
      break;
    default:
      return nullptr;
  }
  for (const MethodEntry& m : *table) {
    if (m.name == name) return &m;
  }
  return nullptr;
}

}  // namespace argent::jinja
