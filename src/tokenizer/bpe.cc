#include "tokenizer/bpe.h"

#include <algorithm>

#include "tokenizer/unicode.h"

namespace argent {
namespace {

constexpr size_t kShortWord = 24;  // up to here looking through all pairs beats a heap

constexpr bool is_printable(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

struct ByteChars {
  std::array<uint16_t, 256> to_char{};
  std::array<int16_t, 0x144> to_byte{};
  constexpr ByteChars() {
    for (auto& b : to_byte) b = -1;
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      to_char[byte] = uint16_t(is_printable(byte) ? byte : next++);
      to_byte[to_char[byte]] = int16_t(byte);
    }
  }
};
constexpr ByteChars kByteChars;
static_assert(kByteChars.to_char[' '] == 0x120 && kByteChars.to_char[0xAD] == 0x143);

}  // namespace

uint32_t byte_to_char(uint8_t byte) { return kByteChars.to_char[byte]; }
int char_to_byte(uint32_t cp) { return cp < kByteChars.to_byte.size() ? kByteChars.to_byte[cp] : -1; }

void Bpe::build(const TextPool& pool, const TextIndex& index, std::span<const Merge> merges) {
  for (int byte = 0; byte < 256; ++byte) {
    std::string text;
    append_utf8(byte_to_char(uint8_t(byte)), text);
    byte_ids_[byte] = index.find(text);
  }
  size_t capacity = 16;
  while (capacity < merges.size() * 2) capacity *= 2;
  pairs_.assign(capacity, {});
  joined_.reserve(merges.size());
  std::string text;
  int32_t joined = -1;
  for (const Merge& m : merges) {
    const int32_t left = index.find(m.left), right = index.find(m.right);
    if (left < 0 || right < 0) continue;
    text.assign(m.left).append(m.right);
    // The tokens that merges make mostly stand in the order of the merges.
    const size_t guess = size_t(joined + 1);
    joined = guess < pool.size() && pool[guess] == text ? int32_t(guess) : index.find(text);
    if (joined < 0) continue;
    Pair& pair = probe(uint64_t(left) << 32 | uint32_t(right));
    if (pair.rank != kNoPair) continue;
    pair = {uint64_t(left) << 32 | uint32_t(right), uint32_t(joined_.size())};
    joined_.push_back(uint32_t(joined));
  }
}

void Bpe::encode_short(std::string_view word, std::vector<int32_t>& ids) const {
  uint32_t id[kShortWord], order[kShortWord];
  size_t n = 0;
  for (const char c : word)
    if (byte_ids_[uint8_t(c)] >= 0) id[n++] = uint32_t(byte_ids_[uint8_t(c)]);
  for (size_t i = 0; i + 1 < n; ++i) order[i] = rank(id[i], id[i + 1]);
  while (n > 1) {
    const size_t i = size_t(std::min_element(order, order + n - 1) - order);
    if (order[i] == kNoPair) break;
    id[i] = joined_[order[i]];
    --n;
    std::copy(id + i + 2, id + n + 1, id + i + 1);
    std::copy(order + i + 1, order + n, order + i);
    if (i > 0) order[i - 1] = rank(id[i - 1], id[i]);
    if (i + 1 < n) order[i] = rank(id[i], id[i + 1]);
  }
  ids.insert(ids.end(), id, id + n);
}

void Bpe::encode_word(std::string_view word, std::vector<int32_t>& ids, MergeScratch& scratch) const {
  if (word.size() <= kShortWord) return encode_short(word, ids);
  auto& symbols = scratch.symbols;
  symbols.clear();
  symbols.reserve(word.size());
  for (const char c : word)
    if (const int32_t id = byte_ids_[uint8_t(c)]; id >= 0) symbols.push_back({0, 0, 0, uint32_t(id)});
  if (symbols.empty()) return;
  merge_symbols(
      scratch, [this](const Symbol& a, const Symbol& b) { return rank(a.value, b.value); },
      [this](Symbol& a, const Symbol&) { a.value = joined_[a.order]; });
  for (uint32_t i = 0; i != kNoSymbol; i = symbols[i].next) ids.push_back(int32_t(symbols[i].value));
}

}  // namespace argent
