// The sampling kernels for baseline; CMakeLists.txt sets the flags by the file name.
#include "backends/cpu/sample-inl.h"
