// Any bytes: refused with one line, or a file that can be read whole and that the writer writes back the same.
#include <cstdlib>

#include "../tests/gguf/walk.h"
#include "gguf/writer.h"

using namespace argent::gguf;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = File::parse({data, size}, "fuzz.gguf");
  if (!file) {
    const std::string& message = file.error().message;
    if (message.empty() || message.size() > 600) std::abort();
    for (const char c : message)
      if (uint8_t(c) < 0x20 || uint8_t(c) >= 0x7f) std::abort();
    return 0;
  }
  volatile uint64_t sum = walk(*file);
  (void)sum;

  Writer writer;
  for (const Entry& entry : file->entries()) writer.set(entry.key, entry.value);
  for (const Tensor& tensor : file->tensors()) writer.add_tensor(tensor);
  const auto bytes = writer.to_bytes();
  if (!bytes) std::abort();
  const auto again = File::parse(*bytes, "again.gguf");
  if (!again || again->entries().size() != file->entries().size() || again->tensor_bytes() != file->tensor_bytes())
    std::abort();
  return 0;
}
