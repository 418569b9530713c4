#include "metal_apple/fake_objc.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <unordered_map>

namespace argent::metal::apple {
struct objc_selector {
  std::string name;
};
// A class; of_class has the methods of the class itself.
struct objc_class {
  struct Method {
    void (*function)();
    bool called = false;
  };
  std::string name;
  std::map<std::string, Method> methods, of_class;
};
}  // namespace argent::metal::apple

namespace argent::fake {

void define_metal();

namespace {

using metal::apple::objc_class;
using metal::apple::objc_selector;
using metal::apple::SEL;

struct Runtime {
  std::map<std::string, std::unique_ptr<objc_selector>> selectors;
  std::map<std::string, std::unique_ptr<objc_class>> classes;
  std::unordered_map<const void*, objc_class*> class_objects;
  std::unordered_map<const void*, std::unique_ptr<Object>> live, dead;
  std::vector<std::vector<Object*>> pools;
  std::vector<std::string> complaints;
};

Runtime& runtime() {
  static Runtime* const known = new Runtime;
  return *known;
}

// The table, filled when it is first asked for.
Runtime& table() {
  static const bool defined = (define_metal(), true);
  (void)defined;
  return runtime();
}

}  // namespace

Object::Object(const char* class_name) : class_name_(class_name) {
  if (!table().classes.count(class_name)) complain(fmt::format("the fake has no class {}", class_name));
  runtime().live.emplace(this, this);
}

void retain(Object* object) {
  if (runtime().dead.count(object)) return complain(object->class_name() + " retained after its release");
  object->references++;
}

void release(Object* object) {
  if (runtime().dead.count(object)) return complain(object->class_name() + " released too often");
  if (--object->references > 0) return;
  auto node = runtime().live.extract(object);
  runtime().dead.insert(std::move(node));
  object->drop();
}

Object* autorelease(Object* object) {
  auto& pools = runtime().pools;
  if (pools.empty()) {
    complain(object->class_name() + " autoreleased without a pool");
  } else {
    pools.back().push_back(object);
  }
  return object;
}

void complain(std::string what) { runtime().complaints.push_back(std::move(what)); }

std::vector<std::string> complaints() { return runtime().complaints; }

std::vector<std::string> live_objects() {
  std::vector<std::string> names;
  for (const auto& [_, object] : runtime().live) names.push_back(object->class_name());
  for (size_t i = 0; i < runtime().pools.size(); i++) names.push_back("an autorelease pool");
  return names;
}

std::vector<std::string> unused_methods() {
  std::vector<std::string> names;
  for (const auto& [name, c] : table().classes) {
    for (const auto& [selector, m] : c->methods)
      if (!m.called && selector != "retain" && selector != "release")
        names.push_back(fmt::format("-[{} {}]", name, selector));
    for (const auto& [selector, m] : c->of_class)
      if (!m.called) names.push_back(fmt::format("+[{} {}]", name, selector));
  }
  return names;
}

void reset_runtime() {
  Runtime& r = runtime();
  r.pools.clear();
  // Objects hold others: let them go first, then forget all.
  while (!r.live.empty()) {
    auto node = r.live.extract(r.live.begin());
    Object* object = node.mapped().get();
    r.dead.insert(std::move(node));
    object->drop();
  }
  r.dead.clear();
  r.complaints.clear();
}

void add_class(const char* class_name) {
  auto& made = runtime().classes[class_name];
  made = std::make_unique<objc_class>();
  made->name = class_name;
  runtime().class_objects[made.get()] = made.get();
}

void add_method(const char* class_name, const char* selector, void (*function)()) {
  const bool of_class = class_name[0] == '+';
  objc_class& c = *runtime().classes.at(class_name + of_class);
  (of_class ? c.of_class : c.methods)[selector].function = function;
}

// What a message to nil or an unknown one runs: its result is nil, 0 and 0.0.
extern "C" void argent_fake_nothing();

// What objc_msgSend jumps to.
extern "C" void (*argent_fake_lookup(const void* self, SEL selector))() {
  const auto nil = &argent_fake_nothing;
  if (!self) return nil;
  Runtime& r = table();
  if (const auto dead = r.dead.find(self); dead != r.dead.end()) {
    complain(fmt::format("{} sent to a {} that was released", selector->name, dead->second->class_name()));
    return nil;
  }
  std::map<std::string, objc_class::Method>* methods = nullptr;
  std::string name;
  if (const auto c = r.class_objects.find(self); c != r.class_objects.end()) {
    methods = &c->second->of_class;
    name = "class " + c->second->name;
  } else if (const auto object = r.live.find(self); object != r.live.end()) {
    name = object->second->class_name();
    methods = &r.classes.at(name)->methods;
  } else {
    complain(selector->name + " sent to what is no object");
    return nil;
  }
  const auto found = methods->find(selector->name);
  if (found == methods->end()) {
    complain(fmt::format("{} does not know {}", name, selector->name));
    return nil;
  }
  found->second.called = true;
  return found->second.function;
}

bool knows(const Object* object, const char* selector) {
  return table().classes.at(object->class_name())->methods.count(selector) != 0;
}

const std::string& name_of(SEL selector) { return selector->name; }

}  // namespace argent::fake

namespace argent::metal::apple {

extern "C" {

objc_class* objc_getClass(const char* name) {
  const auto& classes = fake::table().classes;
  const auto found = classes.find(name);
  // Protocols' implementations have classes here, but no name that a program could ask for.
  if (found == classes.end() || found->second->of_class.empty()) {
    fake::complain(std::string("there is no class ") + name);
    return nullptr;
  }
  return found->second.get();
}

SEL sel_registerName(const char* name) {
  auto& selector = fake::runtime().selectors[name];
  if (!selector) selector = std::make_unique<objc_selector>(objc_selector{name});
  return selector.get();
}

void* objc_autoreleasePoolPush() {
  auto& pools = fake::runtime().pools;
  pools.emplace_back();
  return reinterpret_cast<void*>(pools.size());
}

void objc_autoreleasePoolPop(void* pool) {
  auto& pools = fake::runtime().pools;
  if (reinterpret_cast<size_t>(pool) != pools.size()) return fake::complain("pools are not closed in turn");
  const auto objects = std::move(pools.back());
  pools.pop_back();
  for (fake::Object* object : objects) fake::release(object);
}

#if !defined(__x86_64__)
#error "the fake runtime's objc_msgSend is written for x86-64"
#endif
// All registers that can hold arguments stay as they are, and so does the stack, where larger structs lie.
asm(R"(
.text
.globl objc_msgSend
.type objc_msgSend, @function
objc_msgSend:
  pushq %rbp
  movq %rsp, %rbp
  subq $176, %rsp
  movq %rdi, (%rsp)
  movq %rsi, 8(%rsp)
  movq %rdx, 16(%rsp)
  movq %rcx, 24(%rsp)
  movq %r8, 32(%rsp)
  movq %r9, 40(%rsp)
  movups %xmm0, 48(%rsp)
  movups %xmm1, 64(%rsp)
  movups %xmm2, 80(%rsp)
  movups %xmm3, 96(%rsp)
  movups %xmm4, 112(%rsp)
  movups %xmm5, 128(%rsp)
  movups %xmm6, 144(%rsp)
  movups %xmm7, 160(%rsp)
  call argent_fake_lookup@PLT
  movq %rax, %r11
  movq (%rsp), %rdi
  movq 8(%rsp), %rsi
  movq 16(%rsp), %rdx
  movq 24(%rsp), %rcx
  movq 32(%rsp), %r8
  movq 40(%rsp), %r9
  movups 48(%rsp), %xmm0
  movups 64(%rsp), %xmm1
  movups 80(%rsp), %xmm2
  movups 96(%rsp), %xmm3
  movups 112(%rsp), %xmm4
  movups 128(%rsp), %xmm5
  movups 144(%rsp), %xmm6
  movups 160(%rsp), %xmm7
  leave
  jmp *%r11
.size objc_msgSend, .-objc_msgSend
argent_fake_nothing:
  xorl %eax, %eax
  xorps %xmm0, %xmm0
  ret
)");
}

}  // namespace argent::metal::apple
