#include "chat/template.h"

#include "chat/interp.h"

namespace argent {

Result<Template> Template::parse(std::string source, std::string name, const TemplateLimits& limits) {
  ARGENT_LET(auto parsed, jinja::parse_template(std::move(source), std::move(name), limits));
  return Template(std::move(parsed));
}

Result<Rendered> Template::render(const Json& context, const RenderOptions& options) const {
  return jinja::Interp(*parsed_, options).run(context);
}

bool Template::reads(std::string_view variable) const { return parsed_->free_names.count(variable) != 0; }
const std::string& Template::source() const { return parsed_->source; }
const std::string& Template::name() const { return parsed_->name; }

}  // namespace argent
