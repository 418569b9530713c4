// Short ways to render in tests.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "chat/template.h"

namespace argent::testing {

inline Result<Rendered> render(const std::string& source, const std::string& context = "{}",
                               const RenderOptions& options = {}) {
  ARGENT_LET(Template t, Template::parse(source, "t", options.limits));
  return t.render(Json::parse(context), options);
}

// The text, or "error: " and the message.
inline std::string text(const std::string& source, const std::string& context = "{}",
                        const RenderOptions& options = {}) {
  auto rendered = render(source, context, options);
  return rendered ? rendered->text : "error: " + rendered.error().message;
}

// The text with the bytes that came from the input in [[...]].
inline std::string marked(const std::string& source, const std::string& context) {
  auto rendered = render(source, context);
  if (!rendered) return "error: " + rendered.error().message;
  std::string out;
  for (const Span& s : rendered->spans) {
    std::string piece = rendered->text.substr(s.begin, s.end - s.begin);
    out += s.from_template ? piece : "[[" + piece + "]]";
  }
  return out;
}

struct Case {
  const char* source;
  const char* expected;
  const char* context = "{}";
};

template <size_t N>
void expect_all(const Case (&cases)[N]) {
  for (const Case& c : cases) EXPECT_EQ(text(c.source, c.context), c.expected) << c.source;
}

}  // namespace argent::testing
