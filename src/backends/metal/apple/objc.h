// Calls of Objective-C methods from C++ without Apple's headers, so that the host layer compiles on every system. On a
// Mac the functions below are in libobjc; in the tests they are a fake runtime over the emulator (tests/metal_apple).
#pragma once

#include <utility>

namespace argent::metal::apple {

struct objc_class;
struct objc_selector;
using SEL = objc_selector*;

extern "C" {
objc_class* objc_getClass(const char* name);
SEL sel_registerName(const char* name);
// Its type is that of the method: it is called through a cast, as the runtime's documentation wants it.
void objc_msgSend();
// The two of the runtime that @autoreleasepool is made of (clang's "Automatic Reference Counting", 7.).
void* objc_autoreleasePoolPush();
void objc_autoreleasePoolPop(void* pool);
}

template <class Signature>
struct Call;
template <class R, class... A>
struct Call<R(A...)> {
  // The parameters' types are the method's, not the arguments': an int given for an NSUInteger is converted.
  static R send(const void* self, SEL selector, A... arguments) {
    return reinterpret_cast<R (*)(const void*, SEL, A...)>(&objc_msgSend)(self, selector, arguments...);
  }
};

// A line of api.h: method `name` of the class whose text stands around it.
#define ARGENT_METHOD(R, name, selector, ...)                     \
  using name##_type = R(__VA_ARGS__);                             \
  template <class... A>                                           \
  R name(A... arguments) {                                        \
    static const SEL known = sel_registerName(selector);          \
    return Call<R(__VA_ARGS__)>::send(this, known, arguments...); \
  }
// The same for a method of the class itself.
#define ARGENT_CLASS_METHOD(R, name, selector, ...)                         \
  using name##_type = R(__VA_ARGS__);                                       \
  template <class... A>                                                     \
  static R name(A... arguments) {                                           \
    static const SEL known = sel_registerName(selector);                    \
    return Call<R(__VA_ARGS__)>::send(class_object(), known, arguments...); \
  }
// Classes that are sent messages by name. Null where the system does not have it.
#define ARGENT_CLASS(name)                                 \
  static objc_class* class_object() {                      \
    static objc_class* const known = objc_getClass(#name); \
    return known;                                          \
  }

// What autoreleased objects of a scope wait in; stands at the top of every function that sends messages.
class Pool {
 public:
  Pool() : pool_(objc_autoreleasePoolPush()) {}
  ~Pool() { objc_autoreleasePoolPop(pool_); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

 private:
  void* pool_;
};

// Owns one reference.
template <class T>
class Ref {
 public:
  Ref() = default;
  // Takes over the reference that methods named new..., alloc and init give.
  static Ref owned(T* object) { return Ref(object); }
  // Adds a reference to what a method with another name gave.
  static Ref shared(T* object) {
    if (object) object->retain();
    return Ref(object);
  }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    if (this != &other) {
      reset();
      object_ = std::exchange(other.object_, nullptr);
    }
    return *this;
  }
  ~Ref() { reset(); }
  void reset() {
    if (object_) std::exchange(object_, nullptr)->release();
  }
  T* get() const { return object_; }
  T* operator->() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  explicit Ref(T* object) : object_(object) {}
  T* object_ = nullptr;
};

// [[T alloc] init]
template <class T>
Ref<T> make() {
  return T::class_object() ? Ref<T>::owned(T::alloc()->init()) : Ref<T>();
}

}  // namespace argent::metal::apple
