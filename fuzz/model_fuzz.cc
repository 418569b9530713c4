// Any bytes: refused with one line, or a model whose plans can be made and dumped, for a device that has some kernels.
#include <cstdlib>

#include "../tests/support/kernel_tables.h"
#include "gguf/gguf.h"
#include "graph/plan.h"
#include "models/model.h"

using namespace argent;

namespace {

void check(const Error& error) {
  if (error.code == Code::internal || error.message.empty() || error.message.size() > 600) std::abort();
  for (const char c : error.message)
    if (uint8_t(c) < 0x20 || uint8_t(c) >= 0x7f) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = gguf::File::parse({data, size}, "fuzz.gguf");
  if (!file) return 0;  // gguf_fuzz has these
  const auto model = build_model(*file);
  if (!model) {
    check(model.error());
    return 0;
  }
  if (!verify(model->graph) || model->kv.layers.size() != model->n_layer) std::abort();
  // Every weight lies in the file: a layer without tensors is no layer, so the graph is no larger than the file.
  for (const Value& v : model->graph.values)
    if (v.kind == ValueKind::weight && (v.data < data || v.file_bytes() > size_t(data + size - v.data))) std::abort();

  test::FakeDevice cpu("cpu"), gpu("gpu", {Op::softcap, Op::glu, Op::gelu});
  gpu.scratch = [](const Node&, uint32_t n_rows) { return 64 * uint64_t(n_rows); };
  const KernelTable* devices[] = {&cpu, &gpu};
  for (const Tail tail : {Tail::logits, Tail::sample})
    for (const uint32_t n : {1u, 512u}) {
      const auto plan = make_plan(model->graph, {n, n == 1 ? 1 : 64u, n == 1, tail}, devices, {.layer_device = {0, 1}});
      if (!plan) std::abort();  // nothing that a file says
      if (plan->graph.nodes.size() < 200) (void)dump(*plan, DumpFormat::json, {});
    }
  return 0;
}
