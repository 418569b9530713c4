#include "backends/cpu/load.h"

#include <algorithm>
#include <atomic>

#include "base/mapped_file.h"

namespace argent::cpu {
namespace {

constexpr uint64_t kChunkBytes = 512 << 10;  // of panels that a thread claims: a fraction of a millisecond
constexpr uint64_t kAheadBytes = 64 << 20;   // of the file that the system is asked for before they are read

struct Chunk {
  uint32_t job, first_panel, count;
};

}  // namespace

Status pack_weights(std::vector<PackJob> jobs, uint8_t* out, uint64_t total, const PackKernels& kernels,
                    ThreadPool& pool, const std::function<bool(const Progress&)>& progress) {
  std::sort(jobs.begin(), jobs.end(),
            [](const PackJob& a, const PackJob& b) { return a.matrix->rows < b.matrix->rows; });
  std::vector<Chunk> chunks;
  for (uint32_t j = 0; j < jobs.size(); ++j) {
    const PackedMatrix& m = jobs[j].matrix->packed;
    const uint32_t panels = n_panels(m.n_rows);
    const uint32_t each =
        uint32_t(std::max<uint64_t>(1, kChunkBytes / std::max<uint64_t>(1, panel_bytes(m.format, m.n_cols))));
    for (uint32_t first = 0; first < panels; first += std::min(each, panels - first))
      chunks.push_back({j, first, std::min(each, panels - first)});
  }
  std::atomic<uint64_t> done = 0;
  std::atomic<bool> stopped = false;
  pool.run([&](uint32_t thread) {
    uint64_t reported = 0;
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
      kernels.pack(m.format, from.rows, m.n_rows, m.n_cols, chunk.first_panel, chunk.count, out + at);
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
