#include "backends/cpu/load.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "base/mapped_file.h"

namespace argent::cpu {
namespace {

// Of panels that a thread claims: two threads in one fresh huge page would both clear it.
constexpr uint64_t kChunkBytes = 4 << 20;
// Of panels that are packed at once, which with their rows stay in L2.
constexpr uint64_t kPieceBytes = 160 << 10;
// Of the file that the system is asked for before they are read.
constexpr uint64_t kAheadBytes = 64 << 20;

// Panels of a matrix that make up `bytes`, at least one.
uint32_t panels_of(const PackedMatrix& m, uint64_t bytes) {
  return uint32_t(std::max<uint64_t>(1, bytes / std::max<uint64_t>(1, panel_bytes(m.format, m.n_cols))));
}

struct Chunk {
  uint32_t job, first_panel, count;
};

// memcpy past the caches.
void stream(uint8_t* to, const uint8_t* from, uint64_t bytes) {
#if defined(__x86_64__)
  const uint64_t head = std::min<uint64_t>(-reinterpret_cast<uintptr_t>(to) % 64, bytes);
  std::memcpy(to, from, head);
  uint64_t i = head;
  for (; i + 64 <= bytes; i += 64)
    for (int k = 0; k < 64; k += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i + k),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i + k)));
  std::memcpy(to + i, from + i, bytes - i);
  _mm_sfence();
#else
  std::memcpy(to, from, bytes);
#endif
}

}  // namespace

Status pack_weights(std::vector<PackJob> jobs, uint8_t* out, uint64_t total, const PackKernels& kernels,
                    ThreadPool& pool, const std::function<bool(const Progress&)>& progress) {
  std::sort(jobs.begin(), jobs.end(),
            [](const PackJob& a, const PackJob& b) { return a.matrix->rows < b.matrix->rows; });
  std::vector<Chunk> chunks;
  uint64_t rows_bytes = 0, packed_bytes = 0;  // of the largest piece
  for (uint32_t j = 0; j < jobs.size(); ++j) {
    const PackedMatrix& m = jobs[j].matrix->packed;
    const uint32_t panels = n_panels(m.n_rows);
    const uint32_t each = panels_of(m, kChunkBytes), at_once = std::min(panels, panels_of(m, kPieceBytes));
    rows_bytes = std::max(rows_bytes, at_once * kPanelRows * row_bytes(m.format, m.n_cols));
    packed_bytes = std::max(packed_bytes, at_once * panel_bytes(m.format, m.n_cols));
    for (uint32_t first = 0; first < panels; first += std::min(each, panels - first))
      chunks.push_back({j, first, std::min(each, panels - first)});
  }
  std::vector<uint8_t> pieces(pool.n_threads() * (rows_bytes + packed_bytes));
  std::atomic<uint64_t> done = 0;
  std::atomic<bool> stopped = false;
  pool.run([&](uint32_t thread) {
    uint64_t reported = 0;
    uint8_t* rows = pieces.data() + thread * (rows_bytes + packed_bytes);
    uint8_t* packed = rows + rows_bytes;
    for (uint32_t c = pool.claim(); c < chunks.size() && !stopped.load(std::memory_order_relaxed); c = pool.claim()) {
      const Chunk& chunk = chunks[c];
      const Matrix& from = *jobs[chunk.job].matrix;
      const PackedMatrix& m = from.packed;
      const uint64_t panel = panel_bytes(m.format, m.n_cols), file_panel = kPanelRows * row_bytes(m.format, m.n_cols);
      // Once in kAheadBytes the bytes behind the next ones are asked for.
      const uint64_t at = jobs[chunk.job].offset + chunk.first_panel * panel;
      if (at / kAheadBytes != (at + chunk.count * panel) / kAheadBytes || c == 0) {
        const Matrix& last = *jobs.back().matrix;
        const uint8_t* begin = from.rows + chunk.first_panel * file_panel;
        const uint8_t* end =
            last.rows + uint64_t(last.packed.n_rows) * row_bytes(last.packed.format, last.packed.n_cols);
        if (begin < end) read_ahead(begin, std::min<uint64_t>(2 * kAheadBytes, uint64_t(end - begin)));
      }
      // Through L2: the file is read in order, a piece of it is packed, and what comes out goes past the caches, which
      // spares reading the lines that are written.
      for (uint32_t done_panels = 0; done_panels < chunk.count;) {
        const uint32_t first = chunk.first_panel + done_panels;
        const uint32_t n = std::min(chunk.count - done_panels, panels_of(m, kPieceBytes));
        const uint32_t row = first * kPanelRows, n_rows = std::min(n * kPanelRows, m.n_rows - row);
        const uint64_t row_size = row_bytes(m.format, m.n_cols);
        std::memcpy(rows, from.rows + row * row_size, n_rows * row_size);
        kernels.pack(m.format, rows, n_rows, m.n_cols, 0, n, packed);
        stream(out + at + done_panels * panel, packed, n * panel);
        done_panels += n;
      }
      const uint64_t so_far = done.fetch_add(chunk.count * panel, std::memory_order_relaxed) + chunk.count * panel;
      if (thread == 0 && progress && so_far - reported > kAheadBytes) {
        reported = so_far;
        if (!progress({"loading weights", so_far, total})) stopped.store(true, std::memory_order_relaxed);
      }
    }
  });
  if (stopped || (progress && !progress({"loading weights", total, total})))
    return fail(Code::cancelled, "loading was stopped");
  for (const PackJob& job : jobs) {
    job.matrix->packed.data = out + job.offset;
    job.matrix->rows = nullptr;
  }
  return {};
}

}  // namespace argent::cpu
