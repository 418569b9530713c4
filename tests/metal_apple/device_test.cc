// MetalDevice on the fake runtime: what is encoded, what is refused, pipelines.
#include "metal_apple/device.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace argent::metal {
namespace {

// A folder of its own that is gone afterwards.
class Folder {
 public:
  Folder() {
    char path[] = "/tmp/argent_metal_XXXXXX";
    path_ = mkdtemp(path);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// ---- what is encoded

TEST_F(Apple, SetsOnlyWhatChanged) {
  auto device = open();
  ASSERT_TRUE(device);
  const Norm norm(*device);
  fake::encoded().clear();
  EXPECT_EQ(norm.error({norm.dispatch(*norm.x, *norm.y), norm.dispatch(*norm.y, *norm.z, true)}), "");
  EXPECT_EQ(fake::encoded(), (Strings{"buffer 1", "buffer 2", "buffer 3", "bytes 0", "threadgroup 0",
                                      "dispatch test_norm", "barrier", "buffer 1", "buffer 3", "dispatch test_norm"}));
  EXPECT_TRUE(Norm::normal(*norm.y));
  EXPECT_TRUE(Norm::normal(*norm.z));
  EXPECT_EQ(device->counts().barriers, 1);
  EXPECT_EQ(device->counts().dispatches, 2);
}

// The strings that tools show, of what was encoded, and dispatches.
Strings names() {
  Strings found;
  for (const std::string& e : fake::encoded())
    if (e.starts_with("label") || e.starts_with("push") || e == "pop" || e.starts_with("dispatch")) found.push_back(e);
  return found;
}

CommandList named_list(const Norm& norm) {
  return {
      {norm.dispatch(*norm.x, *norm.y), norm.dispatch(*norm.y, *norm.z, true), norm.dispatch(*norm.z, *norm.y, true)},
      "1 rows",
      {{0, "embed"}, {1, "norm_mul", 1}, {1, "reshape", 1}, {3, "argmax"}}};
}

TEST_F(Apple, ShowsRegionsWhereItIsLookedAt) {
  for (const bool shown : {false, true}) {
    auto device = open(with([&](MetalOptions& o) { o.regions = shown; }));
    ASSERT_TRUE(device);
    const Norm norm(*device);
    fake::encoded().clear();
    ASSERT_TRUE(device->submit(named_list(norm)));
    ASSERT_TRUE(device->wait());
    const std::string dispatch = "dispatch test_norm";
    EXPECT_EQ(names(),
              shown ? Strings({"label of MTLCommandBuffer: 1 rows", "label of MTLComputeCommandEncoder: 1 rows",
                               "push layer 1 norm_mul", dispatch, "pop", "push argmax", dispatch, dispatch, "pop"})
                    : Strings({dispatch, dispatch, dispatch}));
  }
}

// Dispatches behind the last region are in none.
TEST_F(Apple, RegionsMayEndBeforeTheList) {
  auto device = open(with([](MetalOptions& o) { o.regions = true; }));
  ASSERT_TRUE(device);
  const Norm norm(*device);
  CommandList list = named_list(norm);
  list.regions = {{2, "norm_mul"}};
  fake::encoded().clear();
  ASSERT_TRUE(device->submit(list));
  ASSERT_TRUE(device->wait());
  const std::string dispatch = "dispatch test_norm";
  EXPECT_EQ(names(), (Strings{"label of MTLCommandBuffer: 1 rows", "label of MTLComputeCommandEncoder: 1 rows",
                              "push norm_mul", dispatch, dispatch, "pop", dispatch}));
}

TEST_F(Apple, NamesPipelinesAndBuffers) {
  auto device = open();
  ASSERT_TRUE(device);
  fake::encoded().clear();
  const Norm norm(*device);
  norm.x->set_label("arena");
  EXPECT_EQ(names(), (Strings{"label of MTLComputePipelineDescriptor: test_norm", "label of MTLBuffer: arena"}));
}

// ---- times

TEST_F(Apple, TimesEachDispatchByTheGpusClock) {
  auto device = open();
  ASSERT_TRUE(device);
  const Norm norm(*device);
  ASSERT_EQ(norm.error({norm.dispatch(*norm.x, *norm.y)}), "");  // not of the timed list
  fake::settings().gpu_longer = 0.25;
  fake::encoded().clear();
  const auto times = device->run_timed(named_list(norm));
  ASSERT_TRUE(times) << times.error().message;
  ASSERT_EQ(times->size(), 3);
  for (size_t i = 0; i < 3; i++) EXPECT_DOUBLE_EQ((*times)[i].seconds, 0.25 * double(i + 1)) << i;
  EXPECT_DOUBLE_EQ((*times)[0].begin, 0);
  EXPECT_DOUBLE_EQ((*times)[1].begin, 0.25 + 0.125);
  EXPECT_DOUBLE_EQ((*times)[2].begin, 0.25 + 0.125 + 0.5 + 0.125);
  EXPECT_TRUE(Norm::normal(*norm.z));
  Strings wanted;
  for (const char* region : {"layer 1 norm_mul", "argmax", "argmax"})
    for (const char* e : {"label of MTLCommandBuffer: test_norm", "label of MTLComputeCommandEncoder: test_norm",
                          "push ", "dispatch test_norm", "pop"})
      wanted.push_back(e == std::string("push ") ? std::string(e) + region : e);
  EXPECT_EQ(names(), wanted);
  EXPECT_EQ(device->counts().lists, 4);
  EXPECT_TRUE(device->run_timed({})->empty());
}

// A command buffer may be said to begin while the one before still runs.
TEST_F(Apple, CountsWhatOverlapsOnce) {
  auto device = open();
  ASSERT_TRUE(device);
  const Norm norm(*device);
  fake::settings().gpu_gap = -0.125;
  const auto times = device->run_timed(named_list(norm));
  ASSERT_TRUE(times) << times.error().message;
  double end = 0;
  for (const GpuTime& time : *times) {
    EXPECT_DOUBLE_EQ(time.begin, end);
    end += time.seconds;
  }
  EXPECT_DOUBLE_EQ(end, 0.25 + 2 * 0.125);
}

TEST_F(Apple, TimesLongListsAndGoesOnAfterAnError) {
  auto device = open();
  ASSERT_TRUE(device);
  const Norm norm(*device);
  CommandList list;
  for (int i = 0; i < 100; i++) list.dispatches.push_back(norm.dispatch(*norm.x, *norm.y, true));
  fake::settings().late = 3;
  fake::settings().command_error = 3;
  const auto failed = device->run_timed(list);
  ASSERT_FALSE(failed);
  EXPECT_NE(failed.error().message.find("a kernel touched memory that is not there"), std::string::npos);
  const auto times = device->run_timed(list);
  ASSERT_TRUE(times) << times.error().message;
  EXPECT_EQ(times->size(), 100);
  list.dispatches[99].values.clear();
  const uint64_t lists = device->counts().lists;
  EXPECT_EQ(device->run_timed(list).error().message, "test_norm: buffer(0) args is not set");
  EXPECT_EQ(device->counts().lists, lists);
  EXPECT_TRUE(device->wait());
}

TEST_F(Apple, SetsABufferAgainAtAnotherOffset) {
  auto device = open();
  ASSERT_TRUE(device);
  const Norm norm(*device);
  constexpr size_t kRow = kCols * sizeof(float);
  auto rows = device->alloc(3 * kRow);
  ASSERT_TRUE(rows);
  for (uint32_t i = 0; i < 3 * kCols; i++) Norm::floats(**rows)[i] = i < kCols ? 5.0f : kUntouched;
  Dispatch first = norm.dispatch(**rows, **rows), second = norm.dispatch(**rows, **rows, true);
  first.buffers[0] = {1, rows->get(), 0, kRow};
  first.buffers[2] = {3, rows->get(), kRow, kRow};
  second.buffers[0] = {1, rows->get(), kRow, kRow};
  second.buffers[2] = {3, rows->get(), 2 * kRow, kRow};
  EXPECT_EQ(norm.error({first, second}), "");
  for (uint32_t row = 0; row < 3; row++)
    EXPECT_NEAR(Norm::floats(**rows)[row * kCols], row == 0 ? 5.0f : 1.0f, 1e-4) << row;
}

TEST_F(Apple, SetsEachDispatchsPipeline) {
  auto device = open();
  ASSERT_TRUE(device);
  const Norm plain(*device), weighted(*device, true);
  EXPECT_EQ(plain.error({plain.dispatch(*plain.x, *plain.y), weighted.dispatch(*weighted.x, *weighted.y)}), "");
  EXPECT_TRUE(Norm::normal(*plain.y));
  for (uint32_t i = 0; i < kCols; i++)
    ASSERT_NEAR(Norm::floats(*weighted.y)[i], 2 * Norm::floats(*plain.y)[i], 1e-4) << i;
}

TEST_F(Apple, SetsAValueAgainWhenABufferTookItsPlace) {
  auto device = open();
  ASSERT_TRUE(device);
  const Norm norm(*device);
  auto args = device->alloc(sizeof(TestNormArgs));
  ASSERT_TRUE(args);
  const TestNormArgs values{kCols, 1e-5f};
  std::memcpy((*args)->fill(0, sizeof values).data(), &values, sizeof values);
  Dispatch by_buffer = norm.dispatch(*norm.x, *norm.y, true);
  by_buffer.values.clear();
  by_buffer.bind(0, **args);
  fake::encoded().clear();
  EXPECT_EQ(norm.error({norm.dispatch(*norm.x, *norm.y), by_buffer, norm.dispatch(*norm.x, *norm.z)}), "");
  EXPECT_EQ(std::count(fake::encoded().begin(), fake::encoded().end(), "bytes 0"), 2);
}

TEST_F(Apple, AListWithoutABarrierIsARace) {
  auto device = open();
  ASSERT_TRUE(device);
  const Norm norm(*device);
  const std::string error = norm.error({norm.dispatch(*norm.x, *norm.y), norm.dispatch(*norm.y, *norm.z)});
  EXPECT_NE(error.find("race of dispatches"), std::string::npos) << error;
}

TEST_F(Apple, ListsRunInTurn) {
  auto device = open();
  ASSERT_TRUE(device);
  const Norm norm(*device);
  fake::settings().late = 5;
  for (int i = 0; i < 100; i++) {  // more than Metal takes at once
    const CommandList list{{norm.dispatch(i % 2 ? *norm.y : *norm.x, i % 2 ? *norm.z : *norm.y)}};
    const Status submitted = device->submit(list);
    ASSERT_TRUE(submitted) << submitted.error().message;
  }
  const Status waited = device->wait();
  EXPECT_TRUE(waited) << waited.error().message;
  EXPECT_TRUE(Norm::normal(*norm.z));
  EXPECT_EQ(device->counts().lists, 100);
  EXPECT_DOUBLE_EQ(device->counts().gpu_seconds, 25.0);  // 0.25 each, says the fake
  const auto live = fake::live_objects();
  EXPECT_EQ(std::count(live.begin(), live.end(), "MTLCommandBuffer"), 0);
}

TEST_F(Apple, NothingIsNothing) {
  auto device = open();
  ASSERT_TRUE(device);
  EXPECT_TRUE(device->submit({}));
  EXPECT_TRUE(device->wait());
  EXPECT_EQ(device->counts().lists, 0);
}

// ---- dispatches that do not fit

TEST_F(Apple, RefusesWhatDoesNotFit) {
  auto device = open();
  ASSERT_TRUE(device);
  const Norm norm(*device);
  const auto broken = [&](auto change) {
    Dispatch d = norm.dispatch(*norm.x, *norm.y);
    change(d);
    const Status submitted = device->submit({{norm.dispatch(*norm.x, *norm.y), d}});
    return submitted ? "" : submitted.error().message;
  };
  auto wrapped = device->wrap(norm.x->bytes().data(), kCols * sizeof(float));
  ASSERT_TRUE(wrapped);
  EXPECT_EQ(broken([](Dispatch& d) { d.pipeline = nullptr; }), "a dispatch has no pipeline");
  EXPECT_EQ(broken([](Dispatch& d) { d.threads = {48}; }),
            "test_norm: 48 x 1 x 1 threads in a threadgroup, must be a multiple of 32 up to 1024");
  EXPECT_EQ(broken([](Dispatch& d) { d.grid = {0}; }), "test_norm: a grid of 0 x 1 x 1 threadgroups");
  EXPECT_EQ(broken([](Dispatch& d) { d.threadgroup_bytes = {20}; }),
            "test_norm: threadgroup(0) has 20 bytes, must be a multiple of 16");
  EXPECT_EQ(broken([](Dispatch& d) { d.threadgroup_bytes = {32784}; }),
            "test_norm: 32784 bytes of threadgroup memory, 0 of them the kernel's own; at most 32768");
  EXPECT_EQ(broken([](Dispatch& d) { d.threadgroup_bytes.assign(9, 16); }),
            "test_norm: 9 threadgroup arguments, at most 8");
  EXPECT_EQ(broken([](Dispatch& d) { d.threadgroup_bytes = {}; }), "test_norm: threadgroup(0) partial has no length");
  EXPECT_EQ(broken([](Dispatch& d) { d.buffers.erase(d.buffers.begin()); }), "test_norm: buffer(1) x is not set");
  EXPECT_EQ(broken([](Dispatch& d) { d.values.clear(); }), "test_norm: buffer(0) args is not set");
  EXPECT_EQ(broken([](Dispatch& d) { d.values[0].bytes.resize(4); }),
            "test_norm: buffer(0) args has 4 bytes, the kernel reads 8");
  EXPECT_EQ(broken([](Dispatch& d) { d.values[0].bytes.resize(4097); }),
            "test_norm: argument args has 4097 bytes, at most 4096");
  EXPECT_EQ(broken([](Dispatch& d) { d.values[0].index = 31; }), "test_norm: there is no buffer(31)");
  EXPECT_EQ(broken([](Dispatch& d) { d.buffers[0].index = 31; }), "test_norm: there is no buffer(31)");
  EXPECT_EQ(broken([](Dispatch& d) { d.value(3, 0.0f); }), "test_norm: buffer(3) y is written, but is given by value");
  EXPECT_EQ(broken([](Dispatch& d) { d.buffers[0].offset = 256; }),
            "test_norm: buffer(1) x starts at 256 of 256 bytes");
  EXPECT_EQ(broken([](Dispatch& d) { d.buffers[0].offset = 2; }),
            "test_norm: buffer(1) x starts at 2 bytes, must be a multiple of 4");
  EXPECT_EQ(broken([](Dispatch& d) { d.buffers[0].offset = 4, d.buffers[0].size = 253; }),
            "test_norm: buffer(1) x has 253 bytes from 4 on, of 256");
  EXPECT_EQ(broken([&](Dispatch& d) { d.buffers[2].buffer = wrapped->get(); }),
            "test_norm: buffer(3) y is written, but may only be read");
  EXPECT_EQ(device->counts().lists, 0);
  EXPECT_EQ(norm.error({norm.dispatch(*norm.x, *norm.y)}), "");
}

TEST_F(Apple, RefusesWhatThePipelineCannot) {
  fake::settings().max_threads = 32;
  fake::settings().static_threadgroup_bytes = 32768 - 64;
  auto device = open();
  ASSERT_TRUE(device);
  const Norm norm(*device);
  EXPECT_EQ(norm.error({norm.dispatch(*norm.x, *norm.y)}),
            "test_norm: 64 threads in a threadgroup; on this GPU the kernel can have 32");
  Dispatch d = norm.dispatch(*norm.x, *norm.y);
  d.threads = {32};
  EXPECT_EQ(norm.error({d}),
            "test_norm: 32832 bytes of threadgroup memory, 32704 of them the kernel's own; at most 32768");
}

// ---- pipelines

TEST_F(Apple, PipelinesAreMadeOnce) {
  auto device = open();
  ASSERT_TRUE(device);
  const FunctionConstant yes{60, true}, no{60, false};
  const auto before = device->counts().pipelines;
  const auto a = device->pipeline("test_norm", {&yes, 1}), b = device->pipeline("test_norm", {&no, 1}),
             c = device->pipeline("test_norm", {&yes, 1});
  ASSERT_TRUE(a && b && c);
  EXPECT_EQ(*a, *c);
  EXPECT_NE(*a, *b);
  EXPECT_EQ(device->counts().pipelines, before + 2);
  EXPECT_EQ((*a)->name(), "test_norm");
  ASSERT_EQ((*a)->arguments().size(), 5);
  EXPECT_EQ((*a)->arguments()[0].kind, Argument::value);
  EXPECT_EQ((*a)->arguments()[3].name, "y");
  EXPECT_TRUE((*a)->arguments()[3].written);
  EXPECT_FALSE((*a)->arguments()[1].written);
  EXPECT_EQ((*a)->arguments()[4].kind, Argument::threadgroup);
}

TEST_F(Apple, RefusesKernelsAndConstants) {
  auto device = open();
  ASSERT_TRUE(device);
  const auto error = [&](const char* name, std::vector<FunctionConstant> constants) {
    auto made = device->pipeline(name, constants);
    return made ? "" : made.error().message;
  };
  EXPECT_EQ(error("no_such", {}), "there is no kernel no_such");
  EXPECT_EQ(error("test_norm", {}), "test_norm needs function constant 60 (kTestHasWeight)");
  EXPECT_EQ(error("test_norm", {{60, 1.0f}}),
            "test_norm: function constant 60 (kTestHasWeight) has another type than the value given");
  EXPECT_EQ(error("test_norm", {{60, true}, {77, true}}), "test_norm: there is no function constant 77");
}

// A name or constant that the tables have wrong is Metal's error.
TEST_F(Apple, TellsMetalsErrors) {
  const KernelText kernels[] = {{"test_norm", {}, {}}};
  KernelFile file{"test_norm", "0", "kernel void test_norm(", kernels, {}};
  const auto error = [&](const char* name, std::span<const KernelFile> files) {
    auto device = open(with([&](MetalOptions& o) { o.kernels = files; }));
    if (!device) return std::string();
    auto made = device->pipeline(name, {});
    return made ? "" : made.error().message;
  };
  EXPECT_EQ(error("test_norm", {&file, 1}),
            "Metal does not give the kernel test_norm: test_norm needs function constant 60 (kTestHasWeight)");
  file.text = "kernel void another(";
  EXPECT_EQ(error("test_norm", {&file, 1}),
            "Metal does not give the kernel test_norm: Function test_norm was not found in the library");
  fake::settings().pipeline_error = "too many registers";
  EXPECT_EQ(error("test_copy", kTestFiles), "no pipeline of test_copy: too many registers");
}

TEST_F(Apple, TellsTheCompilersFirstError) {
  fake::settings().compile_error =
      "program_source:1:2: warning: unused\nprogram_source:3:4: error: no such thing\nprogram_source:5:6: error: more";
  auto device = open();  // other kernels may still be good
  ASSERT_TRUE(device);
  const auto made = device->pipeline("test_copy", {});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().message, "test_copy.metal does not compile: program_source:3:4: error: no such thing");
  fake::settings().compile_error.clear();
  EXPECT_TRUE(device->pipeline("test_copy", {}));
}

TEST_F(Apple, TakesPrecompiledLibraries) {
  const Folder folder;
  const auto write = [&](const KernelFile& file, const std::string& hash, std::string_view text) {
    std::ofstream(folder.file(file.stem + ("-" + hash) + ".metallib")) << text;
  };
  write(kTestFiles[0], kTestFiles[0].hash, kTestFiles[0].text);
  write(kTestFiles[1], "another", kTestFiles[1].text);  // of another build
  for (const bool damaged : {false, true}) {
    if (damaged) write(kTestFiles[1], kTestFiles[1].hash, "damaged");
    auto device = open(with([&](MetalOptions& o) { o.metallibs = folder.path(); }));
    ASSERT_TRUE(device);
    const Norm norm(*device);
    EXPECT_TRUE(device->pipeline("test_copy", {}));
    EXPECT_EQ(device->counts().libraries_precompiled, 1);
    EXPECT_EQ(device->counts().libraries_compiled, 1);
    EXPECT_EQ(norm.error({norm.dispatch(*norm.x, *norm.y)}), "");
  }
}

TEST_F(Apple, KeepsPipelinesForTheNextStart) {
  const Folder folder;
  const MetalOptions options = with([&](MetalOptions& o) { o.archive = folder.file("pipelines.archive"); });
  for (int start = 0; start < 3; start++) {
    auto device = open(options);
    ASSERT_TRUE(device);
    EXPECT_TRUE(device->pipeline("test_copy", {}));
    const Status saved = device->save_archive();
    EXPECT_TRUE(saved) << saved.error().message;
    if (start == 1) std::ofstream(options.archive) << "of another system";
  }
  std::ifstream file(options.archive);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  EXPECT_NE(text.find("test_copy"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(options.archive + ".new"));
}

TEST_F(Apple, WritesAnArchiveOnlyForNewPipelines) {
  const Folder folder;
  const MetalOptions options = with([&](MetalOptions& o) { o.archive = folder.file("pipelines.archive"); });
  for (const bool again : {false, true}) {
    auto device = open(options);
    ASSERT_TRUE(device);
    EXPECT_TRUE(device->pipeline("test_copy", {}));
    EXPECT_GE(device->counts().pipelines, 1);
    EXPECT_EQ(device->counts().pipelines_archived, again ? device->counts().pipelines : 0);
    if (again) std::filesystem::remove(options.archive);
    EXPECT_TRUE(device->save_archive());
    EXPECT_EQ(std::filesystem::exists(options.archive), !again);
    if (!again) continue;
    const Norm norm(*device);  // the archive has none
    EXPECT_EQ(norm.error({norm.dispatch(*norm.x, *norm.y)}), "");
    EXPECT_TRUE(device->save_archive());
    EXPECT_TRUE(std::filesystem::exists(options.archive));
  }
}

TEST_F(Apple, SaysWhereAnArchiveCannotBeWritten) {
  auto device = open(with([&](MetalOptions& o) { o.archive = "/no/such/folder/pipelines"; }));
  ASSERT_TRUE(device);
  EXPECT_TRUE(device->pipeline("test_copy", {}));
  const Status saved = device->save_archive();
  ASSERT_FALSE(saved);
  EXPECT_EQ(
      saved.error().message,
      "the Metal pipelines could not be written to /no/such/folder/pipelines.new: The file could not be written.");
}

}  // namespace
}  // namespace argent::metal
