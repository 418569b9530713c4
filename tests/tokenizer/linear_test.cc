// Long runs of one thing: time linear in the length, a stack that does not depend on it, bounded memory.
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <new>

#include "tokenizer/vocabs.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ARGENT_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define ARGENT_SANITIZED 1
#endif
#ifdef ARGENT_SANITIZED
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// Every allocation of this program is counted, for the test of memory, where the C library tells the sizes and no
// sanitizer brings operators of its own.
#if defined(__GLIBC__) && !defined(ARGENT_SANITIZED)
#define ARGENT_COUNTS_MEMORY 1
#include <malloc.h>
namespace {
std::atomic<size_t> live_bytes{0}, peak_bytes{0};
}  // namespace

void* operator new(size_t size) {
  void* p = std::malloc(size);
  if (!p) throw std::bad_alloc();
  const size_t live = live_bytes += malloc_usable_size(p);
  if (live > peak_bytes) peak_bytes = live;
  return p;
}
void operator delete(void* p) noexcept {
  live_bytes -= malloc_usable_size(p);
  std::free(p);
}
void operator delete(void* p, size_t) noexcept { operator delete(p); }
#endif

namespace argent::testing {
namespace {

const std::string kUnits[] = {"A", "é", "字", ".", " ", "\n", "1", "\u0301", "us", "a ", " \n", "<", "\xFF", "'"};

std::string repeated(const std::string& unit, size_t bytes) {
  std::string text;
  text.reserve(bytes + unit.size());
  while (text.size() < bytes) text += unit;
  return text;
}

// Of this thread's processor time, so that a busy machine does not matter.
double seconds(const std::function<void()>& work) {
  auto now = [] {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
  };
  const double start = now();
  work();
  return now() - start;
}

void expect_linear(const Tokenizer& tokenizer, const std::string& name, size_t bytes) {
  if (kSanitized) bytes /= 8;
  for (const std::string& unit : kUnits) {
    const std::string half = repeated(unit, bytes / 2), whole = repeated(unit, bytes);
    std::vector<int32_t> ids;
    double t1 = 1e9, t2 = 1e9;
    // 0.25 to 0.6 s a MB where another program shares the core; quadratic time would be minutes.
    const double bound = 1.5 * double(bytes) / (1 << 20);
    auto linear = [&] { return t2 < bound && t2 < 4 * t1 + 0.02; };  // 2, and what caches and noise add
    for (int i = 0; i < 3 && !linear(); ++i) {
      t1 = std::min(t1, seconds([&] { ids = tokenizer.encode(half); }));
      t2 = std::min(t2, seconds([&] { ids = tokenizer.encode(whole); }));
      if (kSanitized) break;
    }
    EXPECT_GT(ids.size(), bytes / 100);
    EXPECT_TRUE(kSanitized || linear()) << name << ' ' << unit << ": " << t1 << " and " << t2 << " s";
  }
}

TEST(Linear, MadeVocabularies) {
  expect_linear(*pair_vocab("smollm")->make(), "smollm", 1 << 18);
  expect_linear(*pair_vocab("llama-bpe")->make(), "llama-bpe", 1 << 18);
  expect_linear(*pair_vocab("gpt-4o")->make(), "gpt-4o", 1 << 18);
  expect_linear(*small_spm()->make(), "spm", 1 << 18);
}
TEST(Linear, SmolLM2) {
  ARGENT_TOKENIZER_OR_SKIP(tokenizer, kSmolLM2);
  expect_linear(*tokenizer, "SmolLM2", 1 << 20);
}
TEST(Linear, Gemma3) {
  ARGENT_TOKENIZER_OR_SKIP(tokenizer, kGemma3);
  expect_linear(*tokenizer, "Gemma 3", 1 << 20);
}

// Overlapping tokens of many lengths, none of which is where the text leads to.
TEST(Linear, NestedSpecialTokens) {
  auto made = pair_vocab("qwen2");
  for (size_t n = 2; n < 300; ++n) made->add(std::string(n, 'x') + "y", TokenType::user_defined);
  for (size_t n = 300; n < 400; ++n) made->add(std::string(n, 'x'), TokenType::control);
  const auto tokenizer = made->make();
  for (const std::string unit : {"x", "xy", "xxxxy"}) {
    const std::string text = repeated(unit, 1 << 20);
    for (const bool special : {true, false}) {
      const double t = seconds([&] { tokenizer->encode(text, {.add_bos = false, .parse_special = special}); });
      EXPECT_TRUE(kSanitized || t < 0.5) << unit << special << t;
    }
  }
}

struct SmallStack {
  const Tokenizer* tokenizer;
  size_t n_ids = 0;
};

void* encode_all(void* argument) {
  auto& job = *static_cast<SmallStack*>(argument);
  for (const std::string& unit : kUnits) {
    std::string text;
    for (int i = 0; i < 131072; ++i) text += unit;
    Detokenizer detokenizer(*job.tokenizer);
    for (const int32_t id : job.tokenizer->encode(text)) job.n_ids += detokenizer.push(id).size() + 1;
  }
  return nullptr;
}

TEST(Linear, InAStackOf256KiB) {
  for (const auto& tokenizer :
       {model_tokenizer(kSmolLM2), model_tokenizer(kGemma3), pair_vocab("gpt-4o")->make(), small_spm()->make()}) {
    if (!tokenizer) continue;
    SmallStack job{tokenizer.get()};
    pthread_attr_t attributes;
    ASSERT_EQ(pthread_attr_init(&attributes), 0);
    ASSERT_EQ(pthread_attr_setstacksize(&attributes, 256 << 10), 0);
    pthread_t thread;
    ASSERT_EQ(pthread_create(&thread, &attributes, encode_all, &job), 0);
    pthread_join(thread, nullptr);
    pthread_attr_destroy(&attributes);
    EXPECT_GT(job.n_ids, 100000u);
  }
}

#ifdef ARGENT_COUNTS_MEMORY
TEST(Linear, Memory) {
  for (const char* name : {kSmolLM2, kGemma3}) {
    ARGENT_TOKENIZER_OR_SKIP(tokenizer, name);
    for (const std::string& unit : kUnits) {
      const std::string text = repeated(unit, 1 << 20);
      const size_t before = live_bytes;
      peak_bytes = before;
      tokenizer->encode(text);
      // Ill-formed bytes become three bytes each in a byte-level vocabulary.
      EXPECT_LT(peak_bytes - before, (unit == "\xFF" ? 96u : 64u) << 20) << name << ' ' << unit;
      EXPECT_GT(peak_bytes - before, 1u << 20) << "the count does not work";
      EXPECT_EQ(live_bytes, before);
    }
  }
}
#endif

TEST(Linear, LoadsFast) {
  const std::pair<const char*, double> bounds[] = {{kSmolLM2, 0.030}, {kGemma3, 0.120}};
  for (const auto& [name, bound] : bounds) {
    const gguf::File* file = model_file(name);
    if (!file) GTEST_SKIP() << "ARGENT_MODELS has no " << name;
    double best = 1e9;
    for (int i = 0; i < 5; ++i) best = std::min(best, seconds([&] { EXPECT_TRUE(bool(Tokenizer::load(*file))); }));
    EXPECT_TRUE(kSanitized || best < bound) << name << best;
    fmt::print("{}: loads in {:.1f} ms\n", name, best * 1e3);
  }
}

}  // namespace
}  // namespace argent::testing
