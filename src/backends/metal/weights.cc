#include "backends/metal/weights.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "base/mapped_file.h"

namespace argent::metal {
namespace {

constexpr uintptr_t kAlignment = 16;  // of a tensor, as kernels/weights.h wants it
// Bytes between tensors of one buffer at most: padding of a file, and no header of the next one, whose mapping may
// begin where this one ends.
constexpr uintptr_t kGap = 64;
constexpr size_t kPage = 4096;  // the least of any system: touched one by one
constexpr size_t kProgressBytes = 64 << 20, kCopiedBytes = 256 << 20;
constexpr size_t kAheadBytes = 128 << 20;  // that the disk reads while the pages before them are touched

struct Tensor {
  ValueId id;
  const uint8_t* data;
  size_t bytes;
};

// Asks for a byte of each page, to have it in memory.
void touch(const uint8_t* data, size_t bytes) {
  for (size_t i = 0; i < bytes; i += kPage) *static_cast<const volatile uint8_t*>(data + i);
}

}  // namespace

Result<std::vector<Place>> Weights::load(Device& device, const DeviceInfo& info, const Graph& graph,
                                         const std::function<bool(const Progress&)>& progress) {
  std::vector<Place> places(graph.values.size());
  std::vector<Tensor> mapped, copied;
  uint64_t total = 0, done = 0;
  for (ValueId id = 0; id < graph.values.size(); ++id) {
    const Value& v = graph.value(id);
    if (v.kind != ValueKind::weight) continue;
    const Tensor tensor{id, v.data, size_t(v.file_bytes())};
    const bool aligned = reinterpret_cast<uintptr_t>(v.data) % kAlignment == 0;
    (aligned ? mapped : copied).push_back(tensor);
    total += tensor.bytes;
  }
  std::sort(mapped.begin(), mapped.end(), [](const Tensor& a, const Tensor& b) { return a.data < b.data; });
  // Neighbours share a buffer, up to the longest that the device takes.
  for (size_t first = 0; first < mapped.size();) {
    const uint8_t* begin = mapped[first].data;
    const uint8_t* end = begin + mapped[first].bytes;
    size_t n = first + 1;
    for (; n < mapped.size() && mapped[n].data <= end + kGap; ++n) {
      const uint8_t* longer = std::max(end, mapped[n].data + mapped[n].bytes);
      if (uint64_t(longer - begin) > info.max_buffer_bytes) break;
      end = longer;
    }
    ARGENT_LET(std::unique_ptr<Buffer> buffer, device.wrap(begin, size_t(end - begin)));
    buffer->set_label("weights");
    const uint8_t* asked = begin;  // for: up to there
    for (; first < n; ++first) {
      const Tensor& t = mapped[first];
      places[t.id] = {buffer.get(), size_t(t.data - begin), t.bytes};
      for (size_t at = 0; at < t.bytes; at += kProgressBytes) {
        const size_t piece = std::min(kProgressBytes, t.bytes - at);
        const uint8_t* next = t.data + std::min(size_t(end - t.data), at + piece + kAheadBytes);
        if (next > asked) {
          read_ahead(asked, size_t(next - asked));
          asked = next;
        }
        touch(t.data + at, piece);
        done += piece;
        if (progress && !progress({"weights", done, total})) return fail(Code::cancelled, "loading was stopped");
      }
    }
    buffers_.push_back(std::move(buffer));
  }
  for (size_t first = 0; first < copied.size();) {
    size_t n = first, bytes = 0;  // as many as fill a buffer, or one that is longer
    for (; n < copied.size() && (n == first || bytes + copied[n].bytes <= kCopiedBytes); ++n)
      bytes += align_up(copied[n].bytes, 64);
    ARGENT_LET(std::unique_ptr<Buffer> buffer, device.alloc(bytes));
    buffer->set_label("weights, copied");
    for (size_t at = 0; first < n; ++first) {
      const Tensor& t = copied[first];
      read_ahead(t.data, t.bytes);
      std::memcpy(buffer->fill(at, t.bytes).data(), t.data, t.bytes);
      places[t.id] = {buffer.get(), at, t.bytes};
      at += align_up(t.bytes, 64);
      done += t.bytes;
      if (progress && !progress({"weights", done, total})) return fail(Code::cancelled, "loading was stopped");
    }
    buffers_.push_back(std::move(buffer));
    copied_bytes_ += bytes;
  }
  return places;
}

}  // namespace argent::metal
