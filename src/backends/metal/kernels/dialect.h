// What every kernel file includes: the library, and the dialect's macros. docs/metal.md has the rules.
#pragma once

#include <metal_atomic>
#include <metal_simdgroup>
#include <metal_simdgroup_matrix>
#include <metal_stdlib>

#if !defined(MTL_SHIM)
// The length of this threadgroup argument is set by the host. A macro, since `threadgroup` means nothing to other
// compilers.
#define MTL_TG(n) [[threadgroup(n)]]
#define MTL_FC(T, name, index) constant T name [[function_constant(index)]]
#define MTL_TABLE(T, name, n) constant T name[n]
#define MTL_UNROLL _Pragma("clang loop unroll(full)")
#endif
