// The vector kernels for baseline; CMakeLists.txt sets the flags by the file name.
#include "backends/cpu/vector-inl.h"
