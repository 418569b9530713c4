// The tree of a parsed template. Names are already resolved: a variable is a slot of the scope it lives in.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "chat/lexer.h"
#include "chat/numbers.h"
#include "chat/value.h"

namespace argent::jinja {

enum class ExprKind : uint8_t {
  constant,
  name,       // ref
  list,       // kids
  tuple,      // kids
  dict,       // kids: key, value, key, value, ...
  attribute,  // kids[0] . text
  item,       // kids[0] [ kids[1] ]
  slice,      // kids[0] [ kids[1] : kids[2] : kids[3] ], null where left out
  call,       // kids[0] ( args )
  filter,     // kids[0] | text ( args ); kids[0] null: the text of the block around
  test,       // kids[0] is text ( args )
  unary_not,
  negative,
  positive,
  binary,       // kids[0] op kids[1]
  concat,       // kids joined by ~
  compare,      // kids[0] compare_ops[0] kids[1] compare_ops[1] kids[2] ...
  logical_and,  // the operand that decides, as in Python
  logical_or,
  conditional,  // kids[1] if kids[0] else kids[2] (null: undefined)
  space_ref,    // target ns.text, ns is ref
};

enum class CompareOp : uint8_t { eq, ne, lt, le, gt, ge, in, not_in };

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct CallArgs {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star;       // *args
  ExprPtr star_star;  // **kwargs
};

// The variable in slot `slot` of the scope `up` scopes further out.
struct VariableRef {
  uint32_t up = 0;
  uint32_t slot = 0;
};

enum class NameUse : uint8_t { load, store, parameter };

struct Expr {
  ExprKind kind = ExprKind::constant;
  NameUse use = NameUse::load;
  Position at;
  uint32_t height = 1;  // of the tree below, bounded by the parser
  std::string text;     // name, attribute, filter, test
  Value value;          // constant
  VariableRef ref;
  BinaryOp op = BinaryOp::add;
  std::vector<CompareOp> compare_ops;
  std::vector<ExprPtr> kids;
  std::unique_ptr<CallArgs> args;
};

// What a variable holds when its scope begins.
struct SlotLoad {
  enum Kind : uint8_t { parameter, undefined, resolve, alias } kind = undefined;
  std::string name;
  VariableRef outer;  // alias, as seen from the new scope
};

struct ScopeLayout {
  std::vector<SlotLoad> slots;
};

enum class StmtKind : uint8_t {
  output,     // exprs
  set,        // targets[0] = exprs[0]
  set_block,  // targets[0] = body, through exprs[0] (filters) when present
  if_,        // branches
  for_,
  macro,
  call_block,
  filter_block,  // exprs[0]
  with,          // targets[i] = exprs[i]
  generation,
  break_,
  continue_,
};

struct Stmt;
using StmtPtr = std::unique_ptr<Stmt>;
using Block = std::vector<StmtPtr>;

// A macro, or the body of a call block.
struct MacroDecl {
  std::string name;                 // empty: anonymous
  std::vector<ExprPtr> parameters;  // names
  std::vector<ExprPtr> defaults;    // of the last parameters
  Block body;
  bool uses_caller = false, uses_kwargs = false, uses_varargs = false;
  int explicit_caller = -1;  // the parameter that is called "caller"
  ScopeLayout layout;
  uint32_t caller_slot = 0, kwargs_slot = 0, varargs_slot = 0;
};

struct Branch {
  ExprPtr test;  // null: else
  Block body;
};

struct Stmt {
  StmtKind kind = StmtKind::output;
  Position at;
  std::vector<ExprPtr> exprs;
  std::vector<ExprPtr> targets;
  Block body;
  std::vector<Branch> branches;
  ScopeLayout layout;  // of the body
  // for
  ExprPtr iterable, filter;
  Block otherwise;
  ScopeLayout filter_layout, otherwise_layout;
  ExprPtr filter_target;  // the target again, resolved in the filter's scope
  bool recursive = false;
  bool uses_loop = false;
  uint32_t loop_slot = 0;
  // macro, call block, generation
  std::unique_ptr<MacroDecl> macro;
  VariableRef macro_ref;
};

}  // namespace argent::jinja
