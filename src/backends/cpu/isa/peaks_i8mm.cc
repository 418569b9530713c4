// The peaks for i8mm; CMakeLists.txt sets the flags by the file name.
#include "backends/cpu/peaks-inl.h"
