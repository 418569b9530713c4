// The matrix kernels for i8mm; CMakeLists.txt sets the flags by the file name.
#include "backends/cpu/matmul-inl.h"
