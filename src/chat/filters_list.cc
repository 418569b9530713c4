// Filters over sequences and mappings.
#include <algorithm>
#include <memory>

#include "chat/interp.h"
#include "chat/unicode.h"

namespace argent::jinja {
namespace {

// "a.b.0" as the path that filters take: parts of digits are indices.
Result<std::vector<Value>> path_of(Interp& interp, const Value* attribute) {
  std::vector<Value> path;
  if (!attribute || attribute->is(Kind::none)) return path;
  if (!attribute->is(Kind::string)) return std::vector<Value>{*attribute};
  const std::string& s = attribute->text().bytes();
  for (size_t begin = 0;;) {
    size_t end = std::min(s.find('.', begin), s.size());
    std::string part = s.substr(begin, end - begin);
    bool digits = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    if (digits) {
      ARGENT_LET(auto index, parse_int(part, 10));
      path.push_back(Value::integer(index.value_or(0)));
    } else {
      ARGENT_LET(Value name, make_string(part, interp.meter()));
      path.push_back(std::move(name));
    }
    if (end == s.size()) return path;
    begin = end + 1;
  }
}

Result<Value> follow(Interp& interp, Value v, const std::vector<Value>& path, const Value* fallback = nullptr) {
  for (const Value& key : path) {
    ARGENT_LET(v, interp.item(v, key));
    if (fallback && !fallback->is(Kind::none) && v.is(Kind::undefined)) v = *fallback;
  }
  return v;
}

Result<Value> without_case(Interp& interp, Value v, bool case_sensitive) {
  if (case_sensitive || !v.is(Kind::string)) return v;
  return case_mapped(interp, v, "lower");
}

struct Keyed {
  Value key, value;
};

Result<std::vector<Value>> sorted(Interp& interp, std::vector<Keyed> items, bool reverse) {
  Status failed;
  auto before = [&](const Keyed& a, const Keyed& b) {
    if (!failed) return false;
    auto r = reverse ? less(b.key, a.key, interp.meter()) : less(a.key, b.key, interp.meter());
    if (!r) failed = r.error();
    return r && *r;
  };
  std::stable_sort(items.begin(), items.end(), before);
  ARGENT_TRY(failed);
  std::vector<Value> out;
  for (Keyed& item : items) out.push_back(std::move(item.value));
  return out;
}

Result<Value> do_sort(Interp& interp, const Value& v, Args& args) {
  ARGENT_LET(Bound b, bind("sort", args, {"reverse", "case_sensitive", "attribute"}, 0));
  if (b[0]) ARGENT_TRY(integer_argument(*b[0], "reverse"));
  std::vector<std::vector<Value>> paths;
  if (b[2] && b[2]->is(Kind::string)) {
    const std::string& s = b[2]->text().bytes();
    for (size_t begin = 0;;) {
      size_t end = std::min(s.find(',', begin), s.size());
      Value part = constant_string(s.substr(begin, end - begin));
      ARGENT_LET(std::vector<Value> path, path_of(interp, &part));
      paths.push_back(std::move(path));
      if (end == s.size()) break;
      begin = end + 1;
    }
  } else {
    ARGENT_LET(std::vector<Value> path, path_of(interp, b[2]));
    paths.push_back(std::move(path));
  }
  ARGENT_LET(std::vector<Value> items, interp.items(v));
  std::vector<Keyed> keyed;
  for (Value& item : items) {
    std::vector<Value> key;
    for (const auto& path : paths) {
      ARGENT_LET(Value part, follow(interp, item, path));
      ARGENT_LET(part, without_case(interp, std::move(part), b.flag(1)));
      key.push_back(std::move(part));
    }
    ARGENT_LET(Value k, interp.list(std::move(key)));
    keyed.push_back({std::move(k), std::move(item)});
  }
  ARGENT_LET(std::vector<Value> out, sorted(interp, std::move(keyed), b.flag(0)));
  return interp.list(std::move(out));
}

Result<Value> do_dictsort(Interp& interp, const Value& v, Args& args) {
  ARGENT_LET(Bound b, bind("dictsort", args, {"case_sensitive", "by", "reverse"}, 0));
  if (b[2]) ARGENT_TRY(integer_argument(*b[2], "reverse"));
  bool by_value = false;
  if (b[1]) {
    bool is_string = b[1]->is(Kind::string);
    by_value = is_string && b[1]->text().bytes() == "value";
    if (!by_value && !(is_string && b[1]->text().bytes() == "key")) {
      return fail(Code::invalid, "dictsort sorts by 'key' or 'value'");
    }
  }
  if (v.is(Kind::undefined)) return fail(Code::invalid, "{}", v.as<UndefinedObject>().why);
  if (!v.is(Kind::dict)) return fail(Code::invalid, "dictsort wants a mapping, not {}", type_name(v));
  std::vector<Keyed> keyed;
  for (const auto& [key, value] : v.dict().entries) {
    ARGENT_LET(Value pair, interp.tuple({key, value}));
    ARGENT_LET(Value k, without_case(interp, by_value ? value : key, b.flag(0)));
    keyed.push_back({std::move(k), std::move(pair)});
  }
  ARGENT_LET(std::vector<Value> out, sorted(interp, std::move(keyed), b.flag(2)));
  return interp.list(std::move(out));
}

Result<Value> do_groupby(Interp& interp, const Value& v, Args& args) {
  ARGENT_LET(Bound b, bind("groupby", args, {"attribute", "default", "case_sensitive"}, 1));
  ARGENT_LET(std::vector<Value> path, path_of(interp, b[0]));
  ARGENT_LET(std::vector<Value> items, interp.items(v));
  std::vector<Keyed> keyed;
  for (Value& item : items) {
    ARGENT_LET(Value key, follow(interp, item, path, b[1]));
    ARGENT_LET(key, without_case(interp, std::move(key), b.flag(2)));
    keyed.push_back({std::move(key), std::move(item)});
  }
  ARGENT_LET(std::vector<Value> in_order, sorted(interp, std::move(keyed), false));
  std::vector<Value> groups;
  for (size_t i = 0; i < in_order.size();) {
    ARGENT_LET(Value grouper, follow(interp, in_order[i], path, b[1]));
    ARGENT_LET(Value key, without_case(interp, grouper, b.flag(2)));
    std::vector<Value> members;
    for (; i < in_order.size(); ++i) {
      ARGENT_LET(Value other, follow(interp, in_order[i], path, b[1]));
      ARGENT_LET(other, without_case(interp, std::move(other), b.flag(2)));
      ARGENT_LET(bool same, equal(key, other, interp.meter()));
      if (!same) break;
      members.push_back(in_order[i]);
    }
    if (members.empty()) return fail(Code::invalid, "groupby: a key that does not equal itself");  // NaN
    ARGENT_LET(Value list, interp.list(std::move(members)));
    ARGENT_LET(Value group, interp.tuple({grouper, list}));
    group.mut<SequenceObject>().group = true;
    groups.push_back(std::move(group));
  }
  return interp.list(std::move(groups));
}

Result<Value> do_unique(Interp& interp, const Value& v, Args& args) {
  ARGENT_LET(Bound b, bind("unique", args, {"case_sensitive", "attribute"}, 0));
  ARGENT_LET(std::vector<Value> path, path_of(interp, b[1]));
  auto seen = std::make_shared<DictObject>();
  auto source = std::make_shared<Ptr<Iterator>>();
  return interp.make_iterator(v.depth() + 1,
                              [&interp, v, path, sensitive = b.flag(0), seen, source](Value& out) -> Result<bool> {
                                if (!*source) {
                                  ARGENT_LET(*source, interp.iterate(v));
                                }
                                for (;;) {
                                  ARGENT_LET(bool more, interp.next(**source, out));
                                  if (!more) return false;
                                  ARGENT_LET(Value key, follow(interp, out, path));
                                  ARGENT_LET(key, without_case(interp, std::move(key), sensitive));
                                  ARGENT_LET(const Value* found, seen->find(key, interp.meter()));
                                  if (found) continue;
                                  ARGENT_TRY(interp.meter().room(seen->entries.size() * 2 * sizeof(Value)));
                                  ARGENT_TRY(seen->set(key, Value::none(), interp.meter()));
                                  return true;
                                }
                              });
}

Result<Value> least_or_most(Interp& interp, const Value& v, Args& args, bool most) {
  ARGENT_LET(Bound b, bind(most ? "max" : "min", args, {"case_sensitive", "attribute"}, 0));
  ARGENT_LET(std::vector<Value> path, path_of(interp, b[1]));
  ARGENT_LET(std::vector<Value> items, interp.items(v));
  if (items.empty()) return make_undefined("No aggregated item, sequence was empty.");
  Value best, best_key;
  for (Value& item : items) {
    ARGENT_LET(Value key, follow(interp, item, path));
    ARGENT_LET(key, without_case(interp, std::move(key), b.flag(0)));
    if (!best.is(Kind::missing)) {
      ARGENT_LET(bool better, most ? less(best_key, key, interp.meter()) : less(key, best_key, interp.meter()));
      if (!better) continue;
    }
    best = std::move(item);
    best_key = std::move(key);
  }
  return best;
}
Result<Value> do_min(Interp& interp, const Value& v, Args& args) { return least_or_most(interp, v, args, false); }
Result<Value> do_max(Interp& interp, const Value& v, Args& args) { return least_or_most(interp, v, args, true); }

Result<Value> do_sum(Interp& interp, const Value& v, Args& args) {
  ARGENT_LET(Bound b, bind("sum", args, {"attribute", "start"}, 0));
  ARGENT_LET(std::vector<Value> path, path_of(interp, b[0]));
  Value total = b[1] ? *b[1] : Value::integer(0);
  if (total.is(Kind::string)) return fail(Code::invalid, "sum cannot add strings");
  ARGENT_LET(std::vector<Value> items, interp.items(v));
  for (Value& item : items) {
    ARGENT_LET(Value part, follow(interp, std::move(item), path));
    ARGENT_LET(total, interp.binary(BinaryOp::add, total, part));
  }
  return total;
}

Result<Value> do_first(Interp& interp, const Value& v, Args& args) {
  ARGENT_TRY(expect_positional("first", args, 0, 0));
  ARGENT_LET(Ptr<Iterator> it, interp.iterate(v));
  Value out;
  ARGENT_LET(bool more, interp.next(*it, out));
  if (!more) return make_undefined("No first item, sequence was empty.");
  return out;
}

// What Python's reversed() takes: no one-pass iterables.
bool reversible(const Value& v) {
  return v.is(Kind::string) || v.is_sequence() || v.is(Kind::dict) || v.is(Kind::range) || v.is(Kind::view) ||
         v.is(Kind::undefined);
}

Result<Value> do_last(Interp& interp, const Value& v, Args& args) {
  ARGENT_TRY(expect_positional("last", args, 0, 0));
  if (!reversible(v)) return fail(Code::invalid, "'{}' object is not reversible", type_name(v));
  if (v.is(Kind::string) || v.is(Kind::range)) {
    if (truthy(v)) return interp.item(v, Value::integer(-1));
    return make_undefined("No last item, sequence was empty.");
  }
  ARGENT_LET(std::vector<Value> items, interp.items(v));
  if (items.empty()) return make_undefined("No last item, sequence was empty.");
  return items.back();
}

Result<Value> do_reverse(Interp& interp, const Value& v, Args& args) {
  ARGENT_TRY(expect_positional("reverse", args, 0, 0));
  if (v.is(Kind::string)) return interp.slice(v, Value::none(), Value::none(), Value::integer(-1));
  ARGENT_LET(std::vector<Value> items, interp.items(v));
  std::reverse(items.begin(), items.end());
  ARGENT_LET(Value list, interp.list(std::move(items)));
  if (!reversible(v)) return list;
  ARGENT_LET(Ptr<Iterator> it, interp.iterate(list));
  return Value(Kind::iterator, std::move(it));
}

Result<Value> do_length(Interp& interp, const Value& v, Args& args) {
  ARGENT_TRY(expect_positional("length", args, 0, 0));
  ARGENT_LET(int64_t n, interp.length(v));
  return Value::integer(n);
}

Result<Value> do_list(Interp& interp, const Value& v, Args& args) {
  ARGENT_TRY(expect_positional("list", args, 0, 0));
  ARGENT_LET(std::vector<Value> items, interp.items(v));
  return interp.list(std::move(items));
}

Result<Value> do_items(Interp& interp, const Value& v, Args& args) {
  ARGENT_TRY(expect_positional("items", args, 0, 0));
  return interp.make_iterator(v.depth() + 1, [&interp, v, i = size_t(0)](Value& out) mutable -> Result<bool> {
    if (v.is(Kind::undefined)) return false;
    if (!v.is(Kind::dict)) return fail(Code::invalid, "Can only get item pairs from a mapping, not {}", type_name(v));
    if (i >= v.dict().entries.size()) return false;
    const auto& [key, value] = v.dict().entries[i++];
    ARGENT_LET(out, interp.tuple({key, value}));
    return true;
  });
}

Result<Value> do_join(Interp& interp, const Value& v, Args& args) {
  ARGENT_LET(Bound b, bind("join", args, {"d", "attribute"}, 0));
  Text separator;
  if (b[0]) {
    ARGENT_LET(separator, interp.text(*b[0]));
  }
  ARGENT_LET(std::vector<Value> path, path_of(interp, b[1]));
  ARGENT_LET(Ptr<Iterator> it, interp.iterate(v));
  Text out;
  Value item;
  for (bool first = true;; first = false) {
    ARGENT_LET(bool more, interp.next(*it, item));
    if (!more) return interp.string(std::move(out));
    ARGENT_LET(item, follow(interp, std::move(item), path));
    ARGENT_LET(Text t, interp.text(item));
    ARGENT_TRY(interp.meter().room(out.footprint() + separator.footprint() + t.footprint()));
    ARGENT_TRY(interp.meter().step_bytes(separator.size()));
    if (!first) out.append(separator);
    out.append(t);
  }
}

// map, select and the like look at each item when it is asked for.
using ItemFunction = std::function<Result<Value>(const Value&)>;

Result<Value> lazily(Interp& interp, const Value& v, const Args& args, bool mapping,
                     std::function<Result<ItemFunction>()> prepare) {
  struct State {
    Ptr<Iterator> source;
    ItemFunction apply;
  };
  auto state = std::make_shared<State>();
  uint32_t depth = std::max(v.depth(), args.depth()) + 1;
  return interp.make_iterator(depth, [&interp, v, mapping, prepare, state](Value& out) -> Result<bool> {
    if (!state->apply) {
      if (!truthy(v)) return false;  // jinja2 does not even look at the arguments
      ARGENT_LET(state->apply, prepare());
      ARGENT_LET(state->source, interp.iterate(v));
    }
    for (;;) {
      Value item;
      ARGENT_LET(bool more, interp.next(*state->source, item));
      if (!more) return false;
      ARGENT_LET(Value result, state->apply(item));
      if (mapping) {
        out = std::move(result);
        return true;
      }
      if (!truthy(result)) continue;
      out = std::move(item);
      return true;
    }
  });
}

Result<std::string> name_argument(const Value& v, std::string_view what) {
  if (!v.is(Kind::string)) return fail(Code::invalid, "no {} is named by a {}", what, type_name(v));
  return v.text().bytes();
}

Result<Value> do_map(Interp& interp, const Value& v, Args& args) {
  return lazily(interp, v, args, true, [&interp, args]() mutable -> Result<ItemFunction> {
    auto named = [&](std::string_view name) {
      return std::find_if(args.named.begin(), args.named.end(), [&](const auto& a) { return a.first == name; });
    };
    if (args.positional.empty() && named("attribute") != args.named.end()) {
      ARGENT_LET(Bound b, bind("map", args, {"attribute", "default"}, 1));
      ARGENT_LET(std::vector<Value> path, path_of(interp, b[0]));
      Value fallback = b[1] ? *b[1] : Value::none();
      return ItemFunction(
          [&interp, path, fallback](const Value& item) { return follow(interp, item, path, &fallback); });
    }
    if (args.positional.empty()) return fail(Code::invalid, "map requires a filter argument");
    ARGENT_LET(std::string name, name_argument(args.positional[0], "filter"));
    args.positional.erase(args.positional.begin());
    return ItemFunction([&interp, name, args](const Value& item) {
      Args copy = args;
      return interp.filter(name, item, copy);
    });
  });
}

Result<Value> select_or_reject(Interp& interp, const Value& v, Args& args, bool select, bool by_attribute) {
  return lazily(interp, v, args, false, [&interp, args, select, by_attribute]() mutable -> Result<ItemFunction> {
    std::vector<Value> path;
    auto& given = args.positional;
    if (by_attribute) {
      if (given.empty()) return fail(Code::invalid, "Missing parameter for attribute name");
      ARGENT_LET(path, path_of(interp, &given[0]));
      given.erase(given.begin());
    }
    if (given.empty()) {
      return ItemFunction([&interp, path, select](const Value& item) -> Result<Value> {
        ARGENT_LET(Value part, follow(interp, item, path));
        return Value::boolean(truthy(part) == select);
      });
    }
    Value test_name = given[0];
    given.erase(given.begin());
    return ItemFunction([&interp, path, select, test_name, args](const Value& item) -> Result<Value> {
      ARGENT_LET(Value part, follow(interp, item, path));
      ARGENT_LET(std::string name, name_argument(test_name, "test"));
      Args copy = args;
      ARGENT_LET(bool holds, interp.test(name, part, copy));
      return Value::boolean(holds == select);
    });
  });
}
Result<Value> do_select(Interp& i, const Value& v, Args& a) { return select_or_reject(i, v, a, true, false); }
Result<Value> do_reject(Interp& i, const Value& v, Args& a) { return select_or_reject(i, v, a, false, false); }
Result<Value> do_selectattr(Interp& i, const Value& v, Args& a) { return select_or_reject(i, v, a, true, true); }
Result<Value> do_rejectattr(Interp& i, const Value& v, Args& a) { return select_or_reject(i, v, a, false, true); }

// A list of lists that is made when the first is asked for.
Result<Value> deferred(Interp& interp, uint32_t depth, std::function<Result<std::vector<Value>>()> make_all) {
  auto all = std::make_shared<std::vector<Value>>();
  return interp.make_iterator(depth, [all, make_all, i = size_t(0), made = false](Value& out) mutable -> Result<bool> {
    if (!made) {
      ARGENT_LET(*all, make_all());
      made = true;
    }
    if (i >= all->size()) return false;
    out = (*all)[i++];
    return true;
  });
}

Result<Value> do_batch(Interp& interp, const Value& v, Args& args) {
  ARGENT_LET(Bound b, bind("batch", args, {"linecount", "fill_with"}, 1));
  Value size = *b[0], fill = b[1] ? *b[1] : Value::none();
  return deferred(
      interp, std::max(v.depth(), args.depth()) + 1, [&interp, v, size, fill]() -> Result<std::vector<Value>> {
        ARGENT_LET(std::vector<Value> items, interp.items(v));
        std::vector<Value> rows, row;
        auto flush = [&]() -> Status {
          ARGENT_LET(Value list, interp.list(std::exchange(row, {})));
          rows.push_back(std::move(list));
          return {};
        };
        for (Value& item : items) {
          ARGENT_LET(bool full, equal(Value::integer(static_cast<int64_t>(row.size())), size, interp.meter()));
          if (full) ARGENT_TRY(flush());
          row.push_back(std::move(item));
        }
        if (row.empty()) return rows;
        if (!fill.is(Kind::none)) {
          ARGENT_LET(int64_t n, integer_argument(size, "linecount"));
          int64_t missing = n - static_cast<int64_t>(row.size());
          if (missing > 0) {
            ARGENT_TRY(interp.meter().step(static_cast<uint64_t>(missing)));
            ARGENT_TRY(interp.meter().room(static_cast<size_t>(missing) * sizeof(Value)));
            row.insert(row.end(), static_cast<size_t>(missing), fill);
          }
        }
        ARGENT_TRY(flush());
        return rows;
      });
}

Result<Value> do_slice(Interp& interp, const Value& v, Args& args) {
  ARGENT_LET(Bound b, bind("slice", args, {"slices", "fill_with"}, 1));
  Value count = *b[0], fill = b[1] ? *b[1] : Value::none();
  return deferred(
      interp, std::max(v.depth(), args.depth()) + 1, [&interp, v, count, fill]() -> Result<std::vector<Value>> {
        ARGENT_LET(std::vector<Value> items, interp.items(v));
        ARGENT_LET(int64_t slices, integer_argument(count, "slices"));
        if (slices == 0) return fail(Code::invalid, "division by zero");
        std::vector<Value> out;
        if (slices < 0) return out;
        ARGENT_TRY(interp.meter().step(static_cast<uint64_t>(slices)));
        ARGENT_TRY(
            interp.meter().room(static_cast<size_t>(std::min<int64_t>(slices, 1 << 30)) * sizeof(SequenceObject)));
        size_t n = static_cast<size_t>(slices), each = items.size() / n, longer = items.size() % n, at = 0;
        for (size_t i = 0; i < n; ++i) {
          size_t size = each + (i < longer ? 1 : 0);
          std::vector<Value> part(items.begin() + static_cast<ptrdiff_t>(at),
                                  items.begin() + static_cast<ptrdiff_t>(at + size));
          at += size;
          if (!fill.is(Kind::none) && i >= longer) part.push_back(fill);
          ARGENT_LET(Value list, interp.list(std::move(part)));
          out.push_back(std::move(list));
        }
        return out;
      });
}

Result<Value> do_default(Interp& interp, const Value& v, Args& args) {
  ARGENT_LET(Bound b, bind("default", args, {"default_value", "boolean"}, 0));
  if (!v.is(Kind::undefined) && !(b.flag(1) && !truthy(v))) return v;
  return b[0] ? Result<Value>(*b[0]) : interp.string(Text());
}

Result<Value> do_attr(Interp& interp, const Value& v, Args& args) {
  ARGENT_LET(Bound b, bind("attr", args, {"name"}, 1));
  ARGENT_LET(const Text* name, string_argument(*b[0], "the name of an attribute"));
  ARGENT_LET(auto own, interp.own_attribute(v, name->bytes()));
  if (own) return std::move(*own);
  return make_undefined(fmt::format("'{} object' has no such attribute", type_name(v)));
}

}  // namespace

const std::vector<Named<Filter>> kListFilters = {
    {"attr", do_attr},       {"batch", do_batch},     {"count", do_length},
    {"d", do_default},       {"default", do_default}, {"dictsort", do_dictsort},
    {"first", do_first},     {"groupby", do_groupby}, {"items", do_items},
    {"join", do_join},       {"last", do_last},       {"length", do_length},
    {"list", do_list},       {"map", do_map},         {"max", do_max},
    {"min", do_min},         {"reject", do_reject},   {"rejectattr", do_rejectattr},
    {"reverse", do_reverse}, {"select", do_select},   {"selectattr", do_selectattr},
    {"slice", do_slice},     {"sort", do_sort},       {"sum", do_sum},
    {"tojson", tojson},      {"unique", do_unique},
};

}  // namespace argent::jinja
