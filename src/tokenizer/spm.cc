#include "tokenizer/spm.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "tokenizer/unicode.h"

namespace argent {
namespace {

// Floats in descending order as integers in ascending order, -0 and 0 alike; never kNoPair for a finite score.
uint32_t order_of(float score) {
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);
  return bits >> 31 ? bits : ~bits & 0x7FFFFFFF;
}

// Calls visit(begin, end) for each character; an ill-formed byte is one of its own.
template <class Visit>
void each_char(std::string_view text, Visit visit) {
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = decode_utf8(text.data() + i, text.size() - i);
    const size_t end = i + (c.valid ? c.length : 1);
    visit(i, end);
    i = end;
  }
}

bool is_space_mark(std::string_view c) { return c == kSpaceMark; }
uint8_t first_byte(std::string_view c) { return is_space_mark(c) ? 0xFF : uint8_t(c.front()); }
uint8_t last_byte(std::string_view c) { return is_space_mark(c) ? 0xFF : uint8_t(c.back()); }

}  // namespace

void Spm::build(const TextPool& pool, const TextIndex& index, std::span<const float> scores,
                std::vector<bool> mergeable, std::optional<int32_t> unk) {
  index_ = &index;
  orders_.assign(pool.size(), kNoPair);
  seams_.assign(1 << 16, false);
  for (size_t id = 0; id < pool.size(); ++id) {
    if (!mergeable[id]) continue;
    orders_[id] = order_of(scores[id]);
    const std::string_view text = pool[id];
    max_length_ = std::max(max_length_, text.size());
    int last = -1;
    each_char(text, [&](size_t begin, size_t end) {
      const std::string_view c = text.substr(begin, end - begin);
      if (last >= 0) seams_[seam(uint8_t(last), first_byte(c))] = true;
      last = last_byte(c);
    });
  }
  for (int byte = 0; byte < 256; ++byte) {
    int32_t id = index.find(fmt::format("<0x{:02X}>", byte));
    const char raw = char(byte);
    if (id < 0) id = find({&raw, 1});
    byte_ids_[byte] = id < 0 ? unk.value_or(-1) : id;
  }
}

int32_t Spm::find(std::string_view text) const {
  if (text.size() > max_length_) return -1;
  const int32_t id = index_->find(text);
  return id >= 0 && orders_[id] != kNoPair ? id : -1;
}

void Spm::encode(std::string_view text, bool space_first, std::vector<int32_t>& ids, MergeScratch& scratch) const {
  std::string part;               // characters between which something may join
  std::vector<uint32_t> offsets;  // where they begin in `part`
  int last = -1;
  auto finish = [&] {
    offsets.push_back(uint32_t(part.size()));
    encode_part(part, offsets, ids, scratch);
    part.clear();
    offsets.clear();
  };
  auto add = [&](std::string_view c) {
    // Where no token has such a seam nothing can join: the parts on both sides are independent of each other.
    if (last >= 0 && !seams_[seam(uint8_t(last), first_byte(c))]) finish();
    last = last_byte(c);
    offsets.push_back(uint32_t(part.size()));
    part += c;
  };
  if (space_first) add(kSpaceMark);
  each_char(text, [&](size_t begin, size_t end) {
    const std::string_view c = text.substr(begin, end - begin);
    add(c == " " ? kSpaceMark : c);
  });
  if (!offsets.empty()) finish();
}

void Spm::encode_part(std::string_view text, std::span<const uint32_t> offsets, std::vector<int32_t>& ids,
                      MergeScratch& scratch) const {
  // A symbol's value is the number of its first character; it reaches to the first character of the next symbol.
  auto& symbols = scratch.symbols;
  const uint32_t n = uint32_t(offsets.size() - 1);
  symbols.clear();
  symbols.reserve(n);
  for (uint32_t i = 0; i < n; ++i) symbols.push_back({0, 0, 0, i});
  auto end_of = [&](const Symbol& s) { return offsets[s.next == kNoSymbol ? n : s.next]; };
  auto order = [&](const Symbol& a, const Symbol& b) {
    const uint32_t begin = offsets[a.value];
    const int32_t id = find(text.substr(begin, end_of(b) - begin));
    return id < 0 ? kNoPair : orders_[id];
  };
  merge_symbols(scratch, order, [](Symbol&, const Symbol&) {});
  for (uint32_t i = 0; i != kNoSymbol; i = symbols[i].next) {
    const std::string_view piece = text.substr(offsets[i], end_of(symbols[i]) - offsets[i]);
    if (const int32_t id = find(piece); id >= 0) {
      ids.push_back(id);
      continue;
    }
    for (const char c : piece)
      if (const int32_t id = byte_ids_[uint8_t(c)]; id >= 0) ids.push_back(id);
  }
}

}  // namespace argent
