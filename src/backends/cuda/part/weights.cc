#include "backends/cuda/part/weights.h"

#include <algorithm>
#include <array>

#include "base/checked.h"
#include "base/mapped_file.h"
#include "base/thread_pool.h"

namespace argent::cuda {
namespace {

constexpr uint64_t kAlignment = 256;         // of a weight in the allocation
constexpr uint64_t kSliceBytes = 64 << 20;   // of a matrix' rows in the file, sent and re-laid at once
constexpr uint32_t kSliceRows = 16;          // relay() takes multiples of them
constexpr uint64_t kPieceBytes = 1 << 20;    // that one thread reads at once
constexpr uint32_t kReaders = 8;             // threads that read the file; more do not bring pages faster
constexpr uint64_t kAheadBytes = 256 << 20;  // of the file that the system is asked for early

// The inputs of an op that are matrices: [first, first + n).
struct MatrixInputs {
  size_t first = 1, n = 0;
};
MatrixInputs matrix_inputs(Op op) {
  switch (op) {
    case Op::embed:
    case Op::matmul:
      return {1, 1};
    case Op::glu:
      return {1, 2};
    case Op::qkv:
    case Op::qkv_store:
      return {1, 3};
    default:
      return {};
  }
}

struct Slice {
  ValueId id;
  uint32_t first, n;
};

// A pair of buffers that slices pass through: the host fills one while the other is on its way.
struct Stage {
  Memory host, device;
  Event sent;
  bool used = false;
};

// A slice of the file to pinned memory, by all threads.
Status read_slice(ThreadPool& pool, const FileReader& file, const uint8_t* from, uint64_t bytes, uint8_t* to) {
  std::vector<Status> status(pool.n_threads());
  pool.run([&](uint32_t thread) {
    for (uint64_t at = pool.claim() * kPieceBytes; at < bytes; at = pool.claim() * kPieceBytes)
      if (Status read = file.read(from + at, std::min(kPieceBytes, bytes - at), to + at); !read) {
        status[thread] = std::move(read);
        return;
      }
  });
  for (const Status& each : status) ARGENT_TRY(each);
  return {};
}

}  // namespace

std::vector<WeightUse> weight_uses(const Graph& graph) {
  std::vector<WeightUse> uses(graph.values.size());
  for (const Node& node : graph.nodes) {
    const MatrixInputs matrices = matrix_inputs(node.op);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (graph.value(node.inputs[i]).kind != ValueKind::weight) continue;
      WeightUse& use = uses[node.inputs[i]];
      (i >= matrices.first && i < matrices.first + matrices.n ? use.matrix : use.vector) = true;
    }
  }
  return uses;
}

uint64_t weight_bytes(const Value& weight, WeightUse use) {
  uint64_t bytes = 0;
  if (use.matrix) bytes += align_up(matrix_bytes(weight.format, weight.n_rows, weight.width), kAlignment);
  if (use.vector) bytes += align_up(4 * uint64_t(weight.n_rows) * weight.width, kAlignment);
  return bytes;
}

Status Weights::load(Device& device, bool dependent, const Graph& graph,
                     const std::function<bool(const Progress&)>& progress) {
  *this = {};  // first, for its memory
  Weights made;
  ARGENT_TRY(made.read(device, dependent, graph, progress));
  *this = std::move(made);
  return {};
}

Status Weights::read(Device& device, bool dependent, const Graph& graph,
                     const std::function<bool(const Progress&)>& progress) {
  matrices_.resize(graph.values.size());
  vectors_.resize(graph.values.size());
  factors_.resize(graph.values.size());
  const std::vector<WeightUse> uses = weight_uses(graph);
  std::vector<ValueId> matrices, vectors;
  uint64_t bytes = 0, total = 0, done = 0, largest = 0;
  for (ValueId id = 0; id < graph.values.size(); ++id) {
    const Value& v = graph.value(id);
    if (!uses[id].matrix && !uses[id].vector) continue;
    if (!v.data) return fail(Code::internal, "{}: weight '{}' has no bytes", device.name(), v.name);
    if (v.width == 0 || v.n_rows == 0 || v.width % info(v.format).block)
      return fail(Code::invalid, "'{}': rows of {} are no whole blocks of {}", v.name, v.width, info(v.format).name);
    if (uses[id].matrix) {
      matrices.push_back(id);
      total += v.file_bytes();
      const uint64_t row = row_bytes(v.format, v.width);
      largest = std::max({largest, kSliceRows * row, std::min(v.file_bytes(), kSliceBytes)});
    }
    if (uses[id].vector) {
      vectors.push_back(id);
      total += v.file_bytes();
    }
    bytes += weight_bytes(v, uses[id]);
  }
  if (const uint64_t free = device.memory_free(), wanted = bytes + (matrices.empty() ? 0 : 2 * largest);
      free && wanted > free)
    return fail(Code::out_of_memory, "{}: the weights want {} bytes, {} of them while they are loaded, {} are free",
                device.name(), wanted, wanted - bytes, free);
  ARGENT_LET(memory_, Memory::of_device(device, bytes, "model's weights"));
  const auto report = [&]() -> Status {
    if (progress && !progress({"loading weights", done, total})) return fail(Code::cancelled, "loading was stopped");
    return {};
  };

  // Vectors in front, decoded here and sent together.
  uint64_t at = 0;
  std::vector<float> floats;
  for (const ValueId id : vectors) {
    const Value& v = graph.value(id);
    const uint64_t n = uint64_t(v.n_rows) * v.width;
    floats.resize(at / 4 + align_up(4 * n, kAlignment) / 4);
    for (uint32_t r = 0; r < v.n_rows; ++r)
      decode_row(v.format, v.data + r * row_bytes(v.format, v.width), floats.data() + at / 4 + uint64_t(r) * v.width,
                 v.width);
    vectors_[id] = reinterpret_cast<const float*>(memory_.data() + at);
    at += align_up(4 * n, kAlignment);
    done += v.file_bytes();
  }
  for (const Node& node : graph.nodes)
    if (node.op == Op::rope_table && node.inputs.size() == 2) {
      const ValueId id = node.inputs[1];
      const float* first = floats.data() + (reinterpret_cast<const uint8_t*>(vectors_[id]) - memory_.data()) / 4;
      factors_[id].assign(first, first + graph.value(id).width);
    }
  if (at)
    ARGENT_TRY(device.check(cudaMemcpyAsync(memory_.data(), floats.data(), at, cudaMemcpyHostToDevice, device.stream()),
                            "cudaMemcpyAsync (vectors)"));
  for (const ValueId id : matrices) {
    const Value& v = graph.value(id);
    matrices_[id] = {memory_.data() + at, v.format, v.n_rows, v.width};
    at += align_up(matrix_bytes(v.format, v.n_rows, v.width), kAlignment);
  }
  ARGENT_TRY(report());

  // In the order of the file, slice after slice.
  std::sort(matrices.begin(), matrices.end(),
            [&](ValueId a, ValueId b) { return graph.value(a).data < graph.value(b).data; });
  std::vector<Slice> slices;
  for (const ValueId id : matrices) {
    const Value& v = graph.value(id);
    const uint32_t n = uint32_t(std::min<uint64_t>(align_up(v.n_rows, kSliceRows),
                                                   largest / row_bytes(v.format, v.width) / kSliceRows * kSliceRows));
    for (uint64_t first = 0; first < v.n_rows; first += n)
      slices.push_back({id, uint32_t(first), uint32_t(std::min<uint64_t>(n, v.n_rows - first))});
  }
  std::array<Stage, 2> stages;
  for (size_t i = 0; i < std::min(stages.size(), slices.size()); ++i) {
    ARGENT_LET(stages[i].host, Memory::pinned(device, largest, "weights on their way"));
    ARGENT_LET(stages[i].device, Memory::of_device(device, largest, "weights on their way"));
    ARGENT_LET(stages[i].sent, Event::make(device));
  }
  const bool small = total <= 16 * kPieceBytes;
  ThreadPool pool({.n_threads = small ? 1 : std::min(kReaders, usable_threads()), .pin = false});
  Launch launch(device.stream(), {.dependent = dependent});
  uint64_t since_ahead = kAheadBytes;
  for (size_t i = 0; i < slices.size(); ++i) {
    const Slice& slice = slices[i];
    const Value& v = graph.value(slice.id);
    const uint64_t row = row_bytes(v.format, v.width), n_bytes = slice.n * row;
    const uint8_t* from = v.data + slice.first * row;
    if (since_ahead >= kAheadBytes / 2) {
      const Value& last = graph.value(slices.back().id);
      const uint8_t* end = last.data + last.file_bytes();
      read_ahead(from, std::min<uint64_t>(kAheadBytes, uint64_t(end - from)));
      since_ahead = 0;
    }
    since_ahead += n_bytes;
    Stage& stage = stages[i % stages.size()];
    if (stage.used) ARGENT_TRY(device.wait(stage.sent.get()));
    ARGENT_TRY(read_slice(pool, FileReader(v.data), from, n_bytes, stage.host.data()));
    ARGENT_TRY(device.check(
        cudaMemcpyAsync(stage.device.data(), stage.host.data(), n_bytes, cudaMemcpyHostToDevice, device.stream()),
        "cudaMemcpyAsync (weights)"));
    relay(launch, matrices_[slice.id], stage.device.data(), slice.first, slice.n);
    ARGENT_TRY(device.check(launch));
    ARGENT_TRY(stage.sent.record(device));
    stage.used = true;
    done += n_bytes;
    ARGENT_TRY(report());
  }
  return device.finish();
}

}  // namespace argent::cuda
