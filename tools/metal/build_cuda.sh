#!/usr/bin/env bash
# Compiles the Metal kernels as CUDA and links them with their cases: OUT/cuda_main, to be run on a machine with an NVIDIA GPU.
#   tools/metal/build_cuda.sh OUT [ARCH]    ARCH: sm_90 (H100, H200) unless given
# The folder is all that the other machine needs beside the driver.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=${1:?"folder for objects and the program"} arch=${2:-sm_90}
mkdir -p "$out"
objects=()
for kernel in "$root"/src/backends/metal/kernels/*.metal; do
  name=$(basename "$kernel" .metal)
  python3 "$root/tools/metal/gen.py" cuda "$kernel" "$out/$name.cu"
  # 1097: attributes that nvcc does not know, as all of Metal's.
  nvcc -std=c++20 -O2 -lineinfo -arch="$arch" -diag-suppress 1097 -I"$root/src" -I"$root/src/backends/metal/shim/cuda" -c "$out/$name.cu" -o "$out/$name.o"
  objects+=("$out/$name.o")
done
cuda=$(dirname "$(dirname "$(command -v nvcc)")")
for source in "$root"/tests/metal/{cuda_main,cuda_device,cases,weights,attention_bench,kv_pool,matrices}.cc "$root"/tests/metal/*_cases.cc "$root"/src/{backends/metal/attention_items,sample/device_step,quant/formats}.cc; do
  object=$out/host_$(basename "$source" .cc).o
  g++ -std=c++20 -O1 -Wall -Wextra -Wno-sign-compare -I"$root/src" -I"$root/tests" -I"$cuda/include" -c "$source" -o "$object"
  objects+=("$object")
done
nvcc -arch="$arch" "${objects[@]}" -lfmt -Xlinker -rpath,'$ORIGIN' -o "$out/cuda_main"
cp "$(ldd "$out/cuda_main" | awk '/libfmt/ { print $3 }')" "$out"  # so that the folder is all that the other machine needs
echo "$out/cuda_main"
