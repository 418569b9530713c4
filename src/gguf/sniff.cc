#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>

#include "gguf/parser.h"

namespace argent::gguf {

std::string_view sniff(std::span<const uint8_t> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), std::min<size_t>(bytes.size(), 256));
  const auto starts = [&](std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; };
  using namespace std::string_view_literals;

  if (starts("version https://git-lfs"))
    return "is a Git LFS pointer; the model itself was not downloaded (run `git lfs pull`)";
  if (starts("FUGG")) return "is a big-endian GGUF file, which is not supported; convert it to little endian";
  if (starts("lmgg") || starts("fmgg") || starts("tjgg") || starts("algg"))
    return "is a GGML file from before GGUF; convert the original model to GGUF";
  if (starts("PK\3\4")) return "is a zip archive, perhaps a PyTorch checkpoint; convert it to GGUF";
  if (starts("\x80\2") || starts("\x80\4"))
    return "is a Python pickle, perhaps a PyTorch checkpoint; convert it to GGUF";
  if (starts("\x89HDF")) return "is an HDF5 file; convert the model to GGUF";
  if (starts("\x1f\x8b") || starts("\x28\xb5\x2f\xfd") || starts("\xfd\x37zXZ") || starts("BZh"))  // gzip zstd xz bzip2
    return "is a compressed file; decompress it first";
  if (text.size() > 9 && text[8] == '{' && text.substr(4, 4) == "\0\0\0\0"sv)
    return "is a safetensors file; convert the model to GGUF";

  std::string_view page = text;
  while (!page.empty() && std::isspace(uint8_t(page.front()))) page.remove_prefix(1);
  std::string lower(page.substr(0, 9));
  for (char& c : lower) c = char(std::tolower(uint8_t(c)));
  if (lower == "<!doctype" || lower.substr(0, 5) == "<html")
    return "is an HTML page, perhaps an error or login page saved by a download";
  if (!page.empty() && page.front() == '{') return "is JSON text, perhaps an error message saved by a download";
  if (std::all_of(bytes.begin(), bytes.begin() + text.size(), [](uint8_t b) { return b == 0; }))
    return "begins with zeros; the download may not have finished";
  return {};
}

}  // namespace argent::gguf
