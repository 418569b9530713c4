// A fake Objective-C runtime for tests on x86-64 Linux: classes and selectors are a table (fake_metal.cc), an unknown
// one is a complaint. Nothing aborts: what is done wrongly is noted and answered with nil, so that a test sees all of
// it. No object's address is used again, so a message to a released one is always noticed.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "backends/metal/apple/objc.h"

namespace argent::fake {

class Object {
 public:
  explicit Object(const char* class_name);
  virtual ~Object() = default;
  // When the last reference is gone: lets go of what it holds.
  virtual void drop() {}
  const std::string& class_name() const { return class_name_; }
  long references = 1;

 private:
  std::string class_name_;
};

void retain(Object* object);
void release(Object* object);
// Into the innermost pool; a complaint where there is none.
Object* autorelease(Object* object);

// Holds a reference, as Metal's objects do of what they need.
template <class T>
class Held {
 public:
  Held() = default;
  explicit Held(T* object) : object_(object) {
    if (object) retain(object);
  }
  Held(Held&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Held& operator=(Held&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Held() { reset(); }
  void reset() {
    if (object_) release(std::exchange(object_, nullptr));
  }
  T* get() const { return object_; }
  T* operator->() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  T* object_ = nullptr;
};

void complain(std::string what);
std::vector<std::string> complaints();
// Classes of the objects that are alive, one each.
std::vector<std::string> live_objects();
// Whether the table has the selector for the object.
bool knows(const Object* object, const char* selector);
const std::string& name_of(metal::apple::SEL selector);
// Methods of the table that were never called, but for retain and release.
std::vector<std::string> unused_methods();
// Forgets complaints and all objects.
void reset_runtime();

void add_method(const char* class_name, const char* selector, void (*function)());
void add_class(const char* class_name);

template <class Signature>
struct Typed;
template <class R, class... A>
struct Typed<R(A...)> {
  using Function = R (*)(void*, metal::apple::SEL, A...);
};
// The function has exactly the types that api.h says, or does not compile; class and selector are written a second
// time. A class method's class name begins with '+'.
template <class Signature>
void method(const char* class_name, const char* selector, typename Typed<Signature>::Function function) {
  add_method(class_name, selector, reinterpret_cast<void (*)()>(function));
}

// Objects as Metal's types and back.
template <class T>
T* in(const void* object) {
  return static_cast<T*>(static_cast<Object*>(const_cast<void*>(object)));
}
template <class T>
T* out(Object* object) {
  return static_cast<T*>(static_cast<void*>(object));
}

}  // namespace argent::fake
