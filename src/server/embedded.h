// Files of src/server that are put into the program when it is built (cmake/embed.cmake): page/*, openapi.json.
#pragma once

#include <string_view>
#include <vector>

namespace argent::server {

struct EmbeddedFile {
  std::string_view name;  // under src/server: "page/index.html"
  std::string_view bytes;
};
const std::vector<EmbeddedFile>& embedded_files();

}  // namespace argent::server
