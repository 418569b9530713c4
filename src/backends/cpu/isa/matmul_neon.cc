// The matrix kernels for neon; CMakeLists.txt sets the flags by the file name.
#include "backends/cpu/matmul-inl.h"
