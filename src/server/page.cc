// The page at "/": static files with a policy that lets nothing else in.
#include "server/api.h"
#include "server/page_files.h"

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

}  // namespace

std::vector<std::string> page_paths() {
  std::vector<std::string> paths = {"/"};
  for (const PageFile& file : page_files()) paths.push_back("/" + std::string(file.name));
  return paths;
}

void add_page_routes(const ApiContext& api) {
  for (const PageFile& file : page_files()) {
    const auto answer = [file](Request, std::shared_ptr<Reply> reply) {
      reply->send(200, std::string(file.bytes), type_of(file.name),
                  {{"content-security-policy", std::string(kPolicy)},
                   {"x-content-type-options", "nosniff"},
                   {"referrer-policy", "no-referrer"},
                   {"cache-control", "no-cache"}});
    };
    api.server->route("GET", "/" + std::string(file.name), answer);
    if (file.name == "index.html") api.server->route("GET", "/", answer);
  }
}

}  // namespace argent::server
