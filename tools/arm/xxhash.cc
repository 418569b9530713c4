// xxhash's functions for tools/arm/build.cmake, out of its package's header.
#define XXH_STATIC_LINKING_ONLY
#define XXH_IMPLEMENTATION
#include <xxhash.h>
