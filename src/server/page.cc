// The page at "/": static files with a policy that lets nothing else in.
#include "server/api.h"
#include "server/embedded.h"

namespace argent::server {
namespace {

constexpr std::string_view kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri "
    "'none'; "
    "form-action 'none'; frame-ancestors 'none'";

std::string_view type_of(std::string_view name) {
  const auto ends = [&](std::string_view end) { return name.ends_with(end); };
  if (ends(".html")) return "text/html; charset=utf-8";
  if (ends(".js")) return "text/javascript; charset=utf-8";
  if (ends(".css")) return "text/css; charset=utf-8";
  if (ends(".svg")) return "image/svg+xml";
  if (ends(".json") || ends(".webmanifest")) return "application/json";
  return "application/octet-stream";
}

// The page's files by their paths: "page/app.js" is "/app.js".
std::vector<std::pair<std::string, std::string_view>> page_files() {
  constexpr std::string_view kFolder = "page/";
  std::vector<std::pair<std::string, std::string_view>> files;
  for (const EmbeddedFile& file : embedded_files())
    if (file.name.starts_with(kFolder))
      files.emplace_back("/" + std::string(file.name.substr(kFolder.size())), file.bytes);
  return files;
}

}  // namespace

std::vector<std::string> page_paths() {
  std::vector<std::string> paths = {"/"};
  for (auto& [path, bytes] : page_files()) paths.push_back(std::move(path));
  return paths;
}

void add_page_routes(const ApiContext& api) {
  for (const auto& [path, bytes] : page_files()) {
    const auto answer = [path = path, bytes = bytes](Request, std::shared_ptr<Reply> reply) {
      reply->send(200, std::string(bytes), type_of(path),
                  {{"content-security-policy", std::string(kPolicy)},
                   {"x-content-type-options", "nosniff"},
                   {"referrer-policy", "no-referrer"},
                   {"cache-control", "no-cache"}});
    };
    api.server->route("GET", path, answer);
    if (path == "/index.html") api.server->route("GET", "/", answer);
  }
}

}  // namespace argent::server
