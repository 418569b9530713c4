// Chunks that are written as text are those that would be built as JSON.
#include <gtest/gtest.h>

#include "server/openai.h"

namespace argent::server::openai {
namespace {

TEST(TextChunks, AreTheSameBytesAsTheirJson) {
  const Json head = {{"id", "x"}, {"object", "y \"z\""}, {"created", 7}};
  for (const std::string& text : {std::string("a"), std::string("\"quoted\" \\ back"),
                                  std::string("line\nend\t\x01\x7f"), std::string("caf\xc3\xa9 \xf0\x9f\x98\xb8"),
                                  std::string("broken \xf0\x9f"), std::string(1, '\0'), std::string()})
    for (const bool chat : {false, true})
      for (const bool usage : {false, true})
        for (const size_t index : {0, 31}) {
          Json json = head;
          Json choice;
          if (chat)
            choice = {{"index", index}, {"delta", {{"content", text}}}};
          else
            choice = {{"text", text}, {"index", index}};
          choice["logprobs"] = nullptr;
          choice["finish_reason"] = nullptr;
          json["choices"] = Json::array({choice});
          if (usage) json["usage"] = nullptr;
          EXPECT_EQ(TextChunks(head, chat, usage).event(index, text), server_event(json));
        }
}

}  // namespace
}  // namespace argent::server::openai
