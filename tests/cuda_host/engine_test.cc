// The engine on the CUDA backend without a GPU: what was planned is what is allocated, and a device that is lost takes
// no more with it than its requests.
#include <gtest/gtest.h>
#include <unistd.h>

#include "cuda_host/life.h"
#include "engine/engines.h"

namespace argent::cuda {
namespace {

using test::TinyModel;
using test::TinyShape;

std::unique_ptr<Engine> open_on_cuda(const TinyModel& tiny, const EngineOptions& options) {
  const std::string path = tiny.write(fmt::format("argent_cuda_host_{}.gguf", ::getpid()));
  auto backend = make_backend(options.backend);
  EXPECT_TRUE(backend) << backend.error().message;
  if (!backend) return nullptr;
  auto engine = Engine::open(path, options, *std::move(backend));
  std::remove(path.c_str());  // it stays mapped
  EXPECT_TRUE(engine) << engine.error().message;
  return engine ? *std::move(engine) : nullptr;
}

// Prompts of several steps, and decodes.
void work(Engine& engine) {
  std::vector<int32_t> tokens = test::text(1300);
  const SequenceId id = engine.open_sequence();
  for (int i = 0; i < 4; ++i, tokens.push_back(7)) test::logits(engine, id, tokens, false);
  engine.close_sequence(id);
}

class CudaHostEngine : public testing::Test {
 protected:
  void SetUp() override { fake_cuda::reset({.memory = 2ull << 30}); }
  void TearDown() override { fake_cuda::reset(); }
};

TEST_F(CudaHostEngine, AllocatesWhatWasPlanned) {
  TinyShape half{.n_embd = 896, .n_ff = 4864, .n_head = 14, .n_head_kv = 2, .d_head = 64, .n_vocab = 20000};
  half.formats = {Format::q4_0, Format::q8_0, Format::q5_0};
  const TinyModel models[] = {TinyModel("llama"), TinyModel("gemma3"), TinyModel("qwen2", half)};
  for (const TinyModel& tiny : models)
    for (const KvType kv : {KvType::f16, KvType::q8_0}) {
      EngineOptions options;
      options.n_ctx = 2048;
      options.backend.kv_k = options.backend.kv_v = kv;
      const auto engine = open_on_cuda(tiny, options);
      ASSERT_TRUE(engine);
      const double planned = double(engine->memory().total_bytes());
      EXPECT_EQ(fake_cuda::state().device_bytes, 0u);
      const Status loaded = engine->load();
      ASSERT_TRUE(loaded) << loaded.error().message;
      work(*engine);
      const uint64_t allocated = engine->backend().allocated_bytes();
      EXPECT_EQ(allocated, fake_cuda::state().device_bytes);
      EXPECT_NEAR(double(allocated), planned, 0.03 * planned) << tiny.arch << ' ' << name_of(kv);
      fmt::print("{} {}: planned {}, allocated {}\n", tiny.arch, name_of(kv), engine->memory().total_bytes(),
                 allocated);
    }
}

TEST_F(CudaHostEngine, GoesOnWithoutItsDevice) {
  EngineOptions options;
  options.n_ctx = 2048;
  const auto engine = open_on_cuda(TinyModel("llama"), options);
  ASSERT_TRUE(engine);
  ASSERT_TRUE(engine->load());
  work(*engine);
  fake_cuda::fail_at(200, fake_cuda::Fault::lost);
  const SequenceId id = engine->open_sequence();
  engine->set_sampling(id, std::nullopt);
  Error error;
  for (int i = 0; i < 3; ++i) {
    test::set_tokens(*engine, id, test::text(600, uint64_t(i + 2)));
    for (Result<bool> more = true; more && *more;)
      if (more = engine->step([](const StepOutput&) {}); !more) error = more.error();
  }
  EXPECT_EQ(error.code, Code::internal);
  EXPECT_NE(error.message.find("the device cannot be used until the program starts anew"), std::string::npos)
      << error.message;
  engine->close_sequence(id);
  for (const std::string& finding : fake_cuda::state().findings) ADD_FAILURE() << finding;
}

}  // namespace
}  // namespace argent::cuda
