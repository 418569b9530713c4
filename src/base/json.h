// JSON values, whose end takes no memory. nlohmann's own destructor collects an array's values in a list first, where
// std::bad_alloc would end the program: just where memory has run out, and values are let go because of that.
// nlohmann::json, which only the load generator has, ends as it always did.
#pragma once

#include <nlohmann/json.hpp>

namespace argent {

using Json = nlohmann::ordered_json;  // keeps the order of keys

}  // namespace argent

// Frees what hangs below a value, from the last to the first and without recursion: the last place of an array or
// object holds the way back up while what was there is emptied. A value may have a type and no content: a null that was
// to become an array where there was no memory for one.
template <>
inline void nlohmann::ordered_json::json_value::destroy(nlohmann::detail::value_t type) {
  using Type = nlohmann::detail::value_t;
  const auto release = [](auto* value) {
    if (!value) return;
    using T = std::remove_pointer_t<decltype(value)>;
    std::allocator<T> memory;
    std::destroy_at(value);
    memory.deallocate(value, 1);
  };
  if (type == Type::string) return release(string);
  if (type == Type::binary) return release(binary);
  if (type != Type::array && type != Type::object) return;

  // Later versions than 3.11.2 keep type and value one member deeper.
  const auto type_of = [](auto& j) -> auto& {
    if constexpr (requires { j.m_data; })
      return j.m_data.m_type;
    else
      return j.m_type;
  };
  const auto value_of = [](auto& j) -> auto& {
    if constexpr (requires { j.m_data; })
      return j.m_data.m_value;
    else
      return j.m_value;
  };
  const auto swap = [&](ordered_json& a, ordered_json& b) {
    std::swap(type_of(a), type_of(b));
    std::swap(value_of(a), value_of(b));
  };
  const auto filled = [&](ordered_json& j) {
    if (type_of(j) == Type::array) return value_of(j).array && !value_of(j).array->empty();
    return type_of(j) == Type::object && value_of(j).object && !value_of(j).object->empty();
  };
  const auto last = [&](ordered_json& j) -> ordered_json& {
    return type_of(j) == Type::array ? value_of(j).array->back() : value_of(j).object->back().second;
  };
  const auto pop = [&](ordered_json& j) {
    type_of(j) == Type::array ? value_of(j).array->pop_back() : value_of(j).object->pop_back();
  };

  ordered_json here, above;  // above: null at the top
  type_of(here) = type;
  value_of(here) = *this;
  for (;;) {
    while (filled(here)) {
      ordered_json& place = last(here);
      if (filled(place)) {  // down: the place keeps the way up, `above` becomes what was here
        ordered_json below;
        swap(below, place);
        swap(place, above);
        swap(above, here);
        swap(here, below);
      } else {
        pop(here);
      }
    }
    type_of(here) == Type::array ? release(value_of(here).array) : release(value_of(here).object);
    type_of(here) = Type::null;
    if (!above.is_structured()) return;
    swap(here, above);
    swap(above, last(here));
    pop(here);
  }
}
