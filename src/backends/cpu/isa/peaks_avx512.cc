// The peaks for avx512; CMakeLists.txt sets the flags by the file name.
#include "backends/cpu/peaks-inl.h"
