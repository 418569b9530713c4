#include "hub/hub.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace argent {
namespace {

namespace fs = std::filesystem;

class Hub : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("argent_hub_" + std::to_string(::getpid()));
    fs::create_directory(folder_);
    ::setenv("ARGENT_MODELS", folder_.c_str(), 1);
  }
  void TearDown() override {
    ::unsetenv("ARGENT_MODELS");
    fs::remove_all(folder_);
  }
  void file(const std::string& name) { std::ofstream(folder_ / name) << "x"; }

  fs::path folder_;
};

TEST_F(Hub, LaterShardsAreNotListed) {
  for (const char* name : {"b-00001-of-00003.gguf", "b-00002-of-00003.gguf", "b-00003-of-00003.gguf", "a.gguf",
                           "one-best-of-many.gguf", "c-0002-of-00003.gguf", "-00002-of-00002.gguf", "notes.txt"})
    file(name);
  EXPECT_EQ(list_models(), (std::vector<std::string>{"a.gguf", "b-00001-of-00003.gguf", "c-0002-of-00003.gguf",
                                                     "one-best-of-many.gguf"}));
}

TEST_F(Hub, NamesAndPaths) {
  file("a.gguf");
  const std::string path = (folder_ / "a.gguf").string();
  for (const std::string& name : {std::string("a"), std::string("a.gguf"), path}) {
    const auto found = find_model(name);
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_EQ(*found, path);
  }
  EXPECT_EQ(find_model("").error().code, Code::not_found);  // the default model is not there
  const Error missing = find_model("b").error();
  EXPECT_EQ(missing.code, Code::not_found);
  EXPECT_NE(missing.message.find("a.gguf"), std::string::npos) << missing.message;
}

TEST_F(Hub, NoFolder) {
  fs::remove_all(folder_);
  EXPECT_TRUE(list_models().empty());
  EXPECT_EQ(find_model("a").error().code, Code::not_found);
}

}  // namespace
}  // namespace argent
