// The peaks for avx2; CMakeLists.txt sets the flags by the file name.
#include "backends/cpu/peaks-inl.h"
