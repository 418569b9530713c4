// Which variable a name means. jinja2 decides this when it compiles: it looks through a scope for what is set and read
// there, in order, and gives each name one variable per scope. The order matters (a name that is read before it is set
// starts with the value of the context, one that is only set starts undefined), so the same two passes are made here:
// `see_*` collects what a scope does with its names, `bind_*` writes the slots into the tree.
#include <initializer_list>
#include <map>

#include "chat/parser.h"

namespace argent::jinja {
namespace {

// The names of one scope. The branches of an if are looked at as overlays, which hold only what the branch adds.
struct Names {
  explicit Names(const Names* outer_scope) : outer(outer_scope), slots(std::make_shared<SlotMap>()) {}
  static Names branch_of(const Names& base) {
    Names n(base.outer);
    n.base = &base;
    n.slots = base.slots;
    return n;
  }

  using SlotMap = std::map<std::string, uint32_t>;
  const Names* outer;
  const Names* base = nullptr;
  std::shared_ptr<SlotMap> slots;
  std::map<std::string, SlotLoad> loads;  // of every name known here
  std::set<std::string> stores;

  bool knows(const std::string& name) const { return loads.count(name) || (base && base->knows(name)); }
  bool stored(const std::string& name) const { return stores.count(name) || (base && base->stored(name)); }

  std::optional<VariableRef> find(const std::string& name) const {
    uint32_t up = 0;
    for (const Names* n = this; n; n = n->outer, ++up) {
      if (n->knows(name)) return VariableRef{up, n->slots->at(name)};
    }
    return std::nullopt;
  }
  std::optional<VariableRef> find_outer(const std::string& name) const {
    auto ref = outer ? outer->find(name) : std::nullopt;
    if (ref) ++ref->up;
    return ref;
  }
  void define(const std::string& name, SlotLoad load) {
    slots->emplace(name, static_cast<uint32_t>(slots->size()));
    load.name = name;
    loads[name] = std::move(load);
  }

  void parameter(const std::string& name) {
    stores.insert(name);
    define(name, {SlotLoad::parameter, "", {}});
  }
  void load(const std::string& name) {
    if (!find(name)) define(name, {SlotLoad::resolve, "", {}});
  }
  void store(const std::string& name) {
    stores.insert(name);
    if (knows(name)) return;
    if (auto ref = find_outer(name)) {
      define(name, {SlotLoad::alias, "", *ref});
    } else {
      define(name, {SlotLoad::undefined, "", {}});
    }
  }
  // What the branches (overlays of this) add. A name that only a branch sets may keep its value from before.
  void merge(std::initializer_list<const Names*> branches) {
    std::set<std::string> added;
    for (const Names* b : branches) {
      for (const std::string& name : b->stores) {
        if (!stored(name)) added.insert(name);
      }
    }
    for (const Names* b : branches) {
      for (const auto& [name, load] : b->loads) loads[name] = load;
      stores.insert(b->stores.begin(), b->stores.end());
    }
    for (const std::string& name : added) {
      auto ref = find_outer(name);
      define(name, ref ? SlotLoad{SlotLoad::alias, "", *ref} : SlotLoad{SlotLoad::resolve, "", {}});
    }
  }
  ScopeLayout layout() const {
    ScopeLayout out;
    out.slots.resize(slots->size());
    for (const auto& [name, load] : loads) out.slots[slots->at(name)] = load;
    return out;
  }
};

template <class Node, class Visit>  // Node: Expr or const Expr
void for_each_kid(Node& e, Visit visit) {
  for (const ExprPtr& kid : e.kids) {
    if (kid) visit(*kid);
  }
  if (!e.args) return;
  for (auto& a : e.args->positional) visit(*a);
  for (auto& [key, a] : e.args->named) visit(*a);
  if (e.args->star) visit(*e.args->star);
  if (e.args->star_star) visit(*e.args->star_star);
}

class Resolver {
 public:
  explicit Resolver(Template::Parsed& parsed) : parsed_(parsed) {}

  Status run() {
    Names names(nullptr);
    see_block(names, parsed_.body);
    ARGENT_TRY(bind_block(names, parsed_.body));
    parsed_.layout = finish(names);
    return {};
  }

 private:
  Error fail_at(Position at, const std::string& what) const { return error_at(Code::invalid, parsed_.name, at, what); }

  ScopeLayout finish(const Names& names) {
    ScopeLayout layout = names.layout();
    for (const SlotLoad& load : layout.slots) {
      if (load.kind == SlotLoad::resolve) parsed_.free_names.insert(load.name);
    }
    return layout;
  }

  static void see(Names& names, const Expr& e) {
    if (e.kind == ExprKind::name) {
      if (e.use == NameUse::parameter) names.parameter(e.text);
      if (e.use == NameUse::store) names.store(e.text);
      if (e.use == NameUse::load) names.load(e.text);
    }
    for_each_kid(e, [&](const Expr& kid) { see(names, kid); });
  }
  static void see_all(Names& names, const std::vector<ExprPtr>& exprs) {
    for (const ExprPtr& e : exprs) see(names, *e);
  }
  // Names that a loop or a macro binds itself.
  static void see_parameters(Names& names, const Expr& target) {
    if (target.kind == ExprKind::name) names.parameter(target.text);
    for (const ExprPtr& kid : target.kids) see_parameters(names, *kid);
  }

  static void see_block(Names& names, const Block& block) {
    for (const StmtPtr& s : block) see_stmt(names, *s);
  }
  // What a statement does in the scope it stands in; bodies with a scope of their own are seen later.
  static void see_stmt(Names& names, const Stmt& s) {
    switch (s.kind) {
      case StmtKind::output:
      case StmtKind::filter_block:
      case StmtKind::call_block:
      case StmtKind::with:
        see_all(names, s.exprs);
        break;
      case StmtKind::set:
        see_all(names, s.exprs);
        see_all(names, s.targets);
        break;
      case StmtKind::set_block:
        see_all(names, s.targets);
        break;
      case StmtKind::if_:
        see_if(names, s);
        break;
      case StmtKind::for_:
        see(names, *s.iterable);
        break;
      case StmtKind::macro:
        names.store(s.macro->name);
        break;
      default:
        break;
    }
  }
  static void see_if(Names& names, const Stmt& s) {
    see(names, *s.branches[0].test);
    Names body = Names::branch_of(names), elifs = Names::branch_of(names), otherwise = Names::branch_of(names);
    see_block(body, s.branches[0].body);
    for (size_t i = 1; i < s.branches.size(); ++i) {
      const Branch& b = s.branches[i];
      if (!b.test) {
        see_block(otherwise, b.body);
        continue;
      }
      // Every elif is an if of its own, with no branch but its body.
      see(elifs, *b.test);
      Names inner = Names::branch_of(elifs);
      see_block(inner, b.body);
      elifs.merge({&inner});
    }
    names.merge({&body, &elifs, &otherwise});
  }

  // --- which of `wanted` a body reads without having set it before, nested scopes included

  struct Wanted {
    std::set<std::string> names, found;
  };
  static void look(Wanted& w, const Expr& e) {
    if (e.kind == ExprKind::name) {
      if (e.use == NameUse::load && w.names.count(e.text)) {
        w.found.insert(e.text);
      } else {
        w.names.erase(e.text);
      }
    }
    if (e.kind == ExprKind::space_ref) return;
    for_each_kid(e, [&](const Expr& kid) { look(w, kid); });
  }
  static void look_block(Wanted& w, const Block& block) {
    for (const StmtPtr& s : block) look_stmt(w, *s);
  }
  static void look_all(Wanted& w, const std::vector<ExprPtr>& exprs) {
    for (const ExprPtr& e : exprs) look(w, *e);
  }
  static void look_stmt(Wanted& w, const Stmt& s) {
    look_all(w, s.targets);
    if (s.iterable) look(w, *s.iterable);
    if (s.kind == StmtKind::filter_block) {
      look_block(w, s.body);
      look_all(w, s.exprs);
    } else {
      look_all(w, s.exprs);
      if (s.macro) {
        look_all(w, s.macro->parameters);
        look_all(w, s.macro->defaults);
        look_block(w, s.macro->body);
      }
      for (const Branch& b : s.branches) {
        if (b.test) look(w, *b.test);
        look_block(w, b.body);
      }
      look_block(w, s.body);
    }
    look_block(w, s.otherwise);
    if (s.filter) look(w, *s.filter);
  }
  static std::set<std::string> free_in(const Block& body, std::set<std::string> names) {
    Wanted w{std::move(names), {}};
    look_block(w, body);
    return std::move(w.found);
  }

  // --- slots

  void bind(Names& names, Expr& e) {
    if (e.kind == ExprKind::name) {
      names.load(e.text);  // jinja2's analysis misses the arguments of a set block's filters; everything else is known
      e.ref = *names.find(e.text);
    }
    for_each_kid(e, [&](Expr& kid) { bind(names, kid); });
  }
  void bind_all(Names& names, std::vector<ExprPtr>& exprs) {
    for (ExprPtr& e : exprs) bind(names, *e);
  }

  Status bind_block(Names& names, Block& block) {
    for (StmtPtr& s : block) ARGENT_TRY(bind_stmt(names, *s));
    return {};
  }

  Status bind_stmt(Names& names, Stmt& s) {
    switch (s.kind) {
      case StmtKind::output:
        bind_all(names, s.exprs);
        return {};
      case StmtKind::set:
        bind_all(names, s.exprs);
        bind_all(names, s.targets);
        return {};
      case StmtKind::set_block:
      case StmtKind::filter_block: {
        Names inner(&names);
        if (s.kind == StmtKind::filter_block) see_all(inner, s.exprs);
        see_block(inner, s.body);
        ARGENT_TRY(bind_block(inner, s.body));
        bind_all(inner, s.exprs);
        bind_all(names, s.targets);
        s.layout = finish(inner);
        return {};
      }
      case StmtKind::if_:
        for (Branch& b : s.branches) {
          if (b.test) bind(names, *b.test);
          ARGENT_TRY(bind_block(names, b.body));
        }
        return {};
      case StmtKind::for_:
        return bind_for(names, s);
      case StmtKind::macro:
        ARGENT_TRY(bind_macro(names, *s.macro, s.at));
        s.macro_ref = *names.find(s.macro->name);
        return {};
      case StmtKind::call_block:
        bind_all(names, s.exprs);
        return bind_macro(names, *s.macro, s.at);
      case StmtKind::generation:
        return bind_macro(names, *s.macro, s.at);
      case StmtKind::with: {
        bind_all(names, s.exprs);  // in the scope outside
        Names inner(&names);
        see_all(inner, s.targets);
        see_block(inner, s.body);
        bind_all(inner, s.targets);
        ARGENT_TRY(bind_block(inner, s.body));
        s.layout = finish(inner);
        return {};
      }
      case StmtKind::break_:
      case StmtKind::continue_:
        return {};
    }
    return {};
  }

  static ExprPtr copy_of_target(const Expr& e) {
    auto out = std::make_unique<Expr>();
    out->kind = e.kind;
    out->use = e.use;
    out->at = e.at;
    out->text = e.text;
    for (const ExprPtr& kid : e.kids) out->kids.push_back(copy_of_target(*kid));
    return out;
  }

  Status bind_for(Names& names, Stmt& s) {
    ARGENT_TRY(refuse_loop_stores(s));
    Names body(&names), filter(&names), otherwise(&names);
    s.uses_loop = s.recursive || free_in(s.body, {"loop"}).count("loop");
    if (s.uses_loop) body.parameter("loop");
    see_parameters(body, *s.targets[0]);
    see_block(body, s.body);
    see_block(otherwise, s.otherwise);
    if (s.filter) {
      see_parameters(filter, *s.targets[0]);
      see(filter, *s.filter);
      s.filter_target = copy_of_target(*s.targets[0]);
      bind(filter, *s.filter_target);
      bind(filter, *s.filter);
      s.filter_layout = finish(filter);
    }
    bind(names, *s.iterable);
    bind(body, *s.targets[0]);
    ARGENT_TRY(bind_block(body, s.body));
    ARGENT_TRY(bind_block(otherwise, s.otherwise));
    s.layout = finish(body);
    s.otherwise_layout = finish(otherwise);
    if (s.uses_loop) s.loop_slot = body.slots->at("loop");
    return {};
  }

  // jinja2 refuses a loop in which anything assigns to `loop`.
  Status refuse_loop_stores(const Stmt& s) const {
    for (const ExprPtr& target : s.targets) {
      if (const Expr* e = stores_loop(*target)) return fail_at(e->at, "cannot assign to 'loop' inside of a loop");
    }
    for (const Block* block : {&s.body, &s.otherwise}) {
      for (const StmtPtr& inner : *block) ARGENT_TRY(refuse_loop_stores(*inner));
    }
    for (const Branch& b : s.branches) {
      for (const StmtPtr& inner : b.body) ARGENT_TRY(refuse_loop_stores(*inner));
    }
    if (s.macro) {
      for (const StmtPtr& inner : s.macro->body) ARGENT_TRY(refuse_loop_stores(*inner));
    }
    return {};
  }
  static const Expr* stores_loop(const Expr& e) {
    if (e.kind == ExprKind::name && e.use == NameUse::store && e.text == "loop") return &e;
    for (const ExprPtr& kid : e.kids) {
      if (const Expr* found = stores_loop(*kid)) return found;
    }
    return nullptr;
  }

  Status bind_macro(Names& names, MacroDecl& m, Position at) {
    Names inner(&names);
    see_all(inner, m.parameters);
    see_all(inner, m.defaults);
    see_block(inner, m.body);
    std::set<std::string> special = free_in(m.body, {"caller", "kwargs", "varargs"});
    for (size_t i = 0; i < m.parameters.size(); ++i) {
      const std::string& name = m.parameters[i]->text;
      if (name == "caller") m.explicit_caller = static_cast<int>(i);
      if (name == "kwargs" || name == "varargs") special.erase(name);
    }
    m.uses_caller = special.count("caller");
    m.uses_kwargs = special.count("kwargs");
    m.uses_varargs = special.count("varargs");
    if (m.uses_caller && m.explicit_caller >= 0 &&
        static_cast<size_t>(m.explicit_caller) + m.defaults.size() < m.parameters.size()) {
      return fail_at(at, "the parameter 'caller' needs a default");
    }
    if (m.uses_caller && m.explicit_caller < 0) inner.parameter("caller");
    if (m.uses_kwargs) inner.parameter("kwargs");
    if (m.uses_varargs) inner.parameter("varargs");
    bind_all(inner, m.parameters);
    bind_all(inner, m.defaults);
    ARGENT_TRY(bind_block(inner, m.body));
    if (inner.knows("caller")) m.caller_slot = inner.slots->at("caller");
    if (inner.knows("kwargs")) m.kwargs_slot = inner.slots->at("kwargs");
    if (inner.knows("varargs")) m.varargs_slot = inner.slots->at("varargs");
    m.layout = finish(inner);
    return {};
  }

  Template::Parsed& parsed_;
};

}  // namespace

Status resolve_names(Template::Parsed& parsed) { return Resolver(parsed).run(); }

}  // namespace argent::jinja
