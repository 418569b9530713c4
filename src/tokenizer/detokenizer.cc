#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace argent {

void take_complete_utf8(std::string& bytes, std::string& out) {
  size_t i = 0;
  while (i < bytes.size()) {
    const Utf8Char c = decode_utf8(bytes.data() + i, bytes.size() - i);
    if (c.incomplete) break;
    if (c.valid) {
      out.append(bytes, i, c.length);
    } else {
      out += kReplacementCharacter;
    }
    i += c.length;
  }
  bytes.erase(0, i);
}

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool render_control, bool strip_prefix)
    : tokenizer_(&tokenizer),
      render_control_(render_control),
      strip_prefix_(strip_prefix && tokenizer.add_space_prefix()) {}

std::string Detokenizer::push(int32_t id) {
  const size_t before = pending_.size();
  tokenizer_->append_bytes(id, pending_, render_control_);
  if (at_start_ && pending_.size() > before) {
    at_start_ = false;
    if (strip_prefix_ && !tokenizer_->is_control(id) && pending_.front() == ' ') pending_.erase(0, 1);
  }
  std::string out;
  take_complete_utf8(pending_, out);
  return out;
}

std::string Detokenizer::flush() {
  std::string out;
  if (!pending_.empty()) out = kReplacementCharacter;  // one maximal subpart is all that can be pending
  pending_.clear();
  at_start_ = true;
  return out;
}

}  // namespace argent
