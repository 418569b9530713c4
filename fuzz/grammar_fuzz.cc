// A schema, a regular expression or a GBNF text (the first byte says which) compiled for a vocabulary of bytes; then
// the masks and the matcher must agree: what the mask allows is accepted, what it does not is refused.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "grammar/grammar.h"

namespace {

using namespace argent::grammar;

void check(bool ok) {
  if (!ok) std::abort();
}

const std::shared_ptr<Compiler>& compiler() {
  static const auto made = [] {
    std::vector<std::string> tokens{""};
    for (int b = 1; b < 256; b++) tokens.emplace_back(1, static_cast<char>(b));
    for (const char* piece : {"\":", "{\"", "null", "ab", "12", "日本"}) tokens.emplace_back(piece);
    const std::vector<int32_t> ends{0};
    return *Compiler::make(tokens, ends, static_cast<int>(tokens.size()) + 3, {.cache_bytes = 0, .cache_count = 0});
  }();
  return made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0 || size > 4096) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto compiled = data[0] % 3 == 0   ? compiler()->json_schema(text)
                        : data[0] % 3 == 1 ? compiler()->regex(text)
                                           : compiler()->gbnf(text);
  if (!compiled) {
    check(!compiled.error().message.empty() && compiled.error().message.find('\n') == std::string::npos);
    return 0;
  }
  Matcher matcher(*compiled);
  std::vector<uint32_t> mask(Matcher::mask_words(compiler()->n_vocab()));
  for (int step = 0; step < 8 && matcher.fill_mask(mask); step++) {
    int32_t pick = -1;
    for (int32_t id = 0; id < compiler()->n_vocab(); id++) {
      const bool allowed = mask[id / 32] >> (id % 32) & 1;
      if (allowed && (pick < 0 || (id * 31 + step * 7 + data[0]) % 5 == 0)) pick = id;
    }
    check(matcher.accept(pick));
    if (step % 3 == 2) {
      check(matcher.rollback(1) && matcher.accept(pick));
    }
  }
  return 0;
}
