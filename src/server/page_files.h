// The files of src/server/page, put into the program when it is built (cmake/embed.cmake).
#pragma once

#include <string_view>
#include <vector>

namespace argent::server {

struct PageFile {
  std::string_view name;  // "index.html"
  std::string_view bytes;
};
const std::vector<PageFile>& page_files();

}  // namespace argent::server
