// The peaks for neon; CMakeLists.txt sets the flags by the file name.
#include "backends/cpu/peaks-inl.h"
