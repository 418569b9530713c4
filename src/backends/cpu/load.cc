#include "backends/cpu/load.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/mapped_file.h"

namespace argent::cpu {
namespace {

// Of panels that a thread claims, from one multiple to the next: two threads in one fresh huge page would both clear
// it.
constexpr uint64_t kChunkBytes = 4 << 20;
// Of panels whose rows are read at once: in L2 when they are packed, and enough that the call does not count.
constexpr uint64_t kPieceBytes = 256 << 10;
// Of the file that the system is asked for before they are read.
constexpr uint64_t kAheadBytes = 64 << 20;

// Panels of a matrix that make up `bytes`, at least one.
uint32_t panels_of(const PackedMatrix& m, uint64_t bytes) {
  return uint32_t(std::max<uint64_t>(1, bytes / std::max<uint64_t>(1, panel_bytes(m.format, m.n_cols))));
}

struct Chunk {
  uint32_t job, first_panel, count;
};

}  // namespace

Status pack_weights(std::vector<PackJob> jobs, uint8_t* out, uint64_t total, const PackKernels& kernels,
                    ThreadPool& pool, const std::function<bool(const Progress&)>& progress) {
  std::sort(jobs.begin(), jobs.end(),
            [](const PackJob& a, const PackJob& b) { return a.matrix->rows < b.matrix->rows; });
  std::vector<FileReader> files;  // of each job
  std::vector<Chunk> chunks;
  uint64_t panel_size = 0;  // of the largest panel in the file
  for (uint32_t j = 0; j < jobs.size(); ++j) {
    const PackedMatrix& m = jobs[j].matrix->packed;
    files.emplace_back(jobs[j].matrix->rows);
    const uint32_t panels = n_panels(m.n_rows);
    panel_size = std::max(panel_size, kPanelRows * row_bytes(m.format, m.n_cols));
    for (uint32_t first = 0; first < panels;) {
      const uint64_t panel = panel_bytes(m.format, m.n_cols), at = jobs[j].offset + first * panel;
      const uint32_t count = std::min(panels - first, panels_of(m, kChunkBytes - at % kChunkBytes + panel - 1));
      chunks.push_back({j, first, count});
      first += count;
    }
  }
  std::vector<uint8_t> buffers(pool.n_threads() * panel_size);
  std::vector<Status> status(pool.n_threads());
  std::atomic<uint64_t> done = 0;
  std::atomic<bool> stopped = false;
  pool.run([&](uint32_t thread) {
    uint64_t reported = 0;
    uint8_t* panel_rows = buffers.data() + thread * panel_size;
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
      // A piece is read to where its panels will be, but that much further on that a panel's rows are read before they
      // are written over, and packed while it is in L2. Of all ways to go through fresh huge pages this is the fastest
      // (Qwen2.5-0.5B Q4_K_M, against two threads that only read: 1.19); by way of a buffer 1.24; packing from the
      // file's mapping 1.39, and 1.62 with its end; stores past the caches 1.4 and more.
      for (uint32_t done_panels = 0; done_panels < chunk.count;) {
        const uint32_t first = chunk.first_panel + done_panels;
        const uint32_t n = std::min(chunk.count - done_panels, panels_of(m, kPieceBytes));
        const uint32_t row = first * kPanelRows, n_rows = std::min(n * kPanelRows, m.n_rows - row);
        const uint64_t row_size = row_bytes(m.format, m.n_cols);
        uint8_t* to = out + at + done_panels * panel;
        uint8_t* rows = to + n * (panel - file_panel) + panel;
        done_panels += n;
        const bool last = done_panels == chunk.count;  // what lies behind its panels is somebody else's
        if (last) rows -= panel;
        if (Status read = files[chunk.job].read(from.rows + row * row_size, n_rows * row_size, rows); !read) {
          status[thread] = std::move(read);
          stopped.store(true, std::memory_order_relaxed);
          return;
        }
        for (uint32_t i = 0; i < n; ++i, rows += file_panel, to += panel) {
          const uint32_t count = std::min(kPanelRows, n_rows - i * kPanelRows);
          if (last) std::memcpy(panel_rows, rows, count * row_size);
          kernels.pack(m.format, last ? panel_rows : rows, count, m.n_cols, 0, 1, to);
        }
      }
      const uint64_t so_far = done.fetch_add(chunk.count * panel, std::memory_order_relaxed) + chunk.count * panel;
      if (thread == 0 && progress && so_far - reported > kAheadBytes) {
        reported = so_far;
        if (!progress({"loading weights", so_far, total})) stopped.store(true, std::memory_order_relaxed);
      }
    }
  });
  for (const Status& each : status) ARGENT_TRY(each);
  if (stopped || (progress && !progress({"loading weights", total, total})))
    return fail(Code::cancelled, "loading was stopped");
  for (const PackJob& job : jobs) {
    job.matrix->packed.data = out + job.offset;
    job.matrix->rows = nullptr;
  }
  return {};
}

}  // namespace argent::cpu
