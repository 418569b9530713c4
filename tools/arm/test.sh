#!/usr/bin/env bash
# Cross-compiles the CPU kernels (--long: every room up to the engine) and their tests for aarch64 and runs them under
# qemu-user: on a processor with the dot-product extension, one with the matrix extension too, and one with neither.
# The program with grammar and server is program.sh's.
#   tools/arm/test.sh [--long] [--require]
#     --long     all tests of these rooms
#     --require  fails where a package is missing; otherwise it says which and succeeds
# Needs g++-aarch64-linux-gnu, qemu-user, googletest, libfmt-dev, libxxhash-dev and nlohmann-json3-dev.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
long=0 require=0
for option in "$@"; do
  case $option in
    --long) long=1 ;;
    --require) require=1 ;;
    *) echo "$option: wanted --long or --require" >&2 && exit 2 ;;
  esac
done
for program in aarch64-linux-gnu-g++ qemu-aarch64; do
  command -v "$program" >/dev/null || { echo "NOT TESTED: no $program (packages g++-aarch64-linux-gnu, qemu-user)" && exit $require; }
done
[ -e /usr/src/googletest ] || { echo "NOT TESTED: no /usr/src/googletest (package googletest)" && exit $require; }

build=build-arm
tests=test_arm_kernels
rooms="base quant gguf tokenizer chat graph models sample reference backends_null kv hub engine"
[ $long = 0 ] || tests="test_backends_cpu $(printf 'test_%s ' $rooms)"
cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=Release -DARGENT_TESTS=ON \
  -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/aarch64-linux.cmake" \
  -DCMAKE_PROJECT_TOP_LEVEL_INCLUDES="$PWD/tools/arm/build.cmake" >/dev/null
# shellcheck disable=SC2086
ninja -C $build $tests

# on CPU ISA TEST FILTER: ISA is what the best of this processor has to be, so that nothing is skipped unseen. What lies
# in the wrong file is an illegal instruction on the lesser processors.
on() {
  echo "== $3 on $1, $2"
  ARGENT_TEST_BEST_ISA=$2 qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu "$1" "$build/$3" --gtest_brief=1 --gtest_filter="$4"
}

if [ $long = 0 ]; then
  # The two longest attention tests take minutes here; timing says nothing under an emulator.
  on max i8mm test_arm_kernels '-Attention.GroupsAndWidths:Attention.PositionsAndWindows*:Peaks.AreThoseOfAMachine' &
  quick='Isas*:SameBits*:Peaks.LoopsCompute:Prepare*:Multiply*:Vector*:Attention.Softcap:*ExtremeQuants*'
  on neoverse-n1 neon test_arm_kernels "$quick"
  on cortex-a72 baseline test_arm_kernels "$quick"
  wait $!
else
  # Tests of real models are skipped where the files are not. Without what measures time: Linear, Header.MostStringsInASecond, Limits.HostileTemplatesEnd;
  # and without what limits memory by setrlimit(), which qemu does not do.
  export ARGENT_MODELS=${ARGENT_MODELS:-${XDG_CACHE_HOME:-$HOME/.cache}/argent/models}
  for room in $rooms; do on max i8mm "test_$room" '-Linear.*:Header.MostStringsInASecond:Limits.HostileTemplatesEnd:HostMemory.NoneIsNoError'; done
  on neoverse-n1 neon test_backends_cpu '-Peaks.AreThoseOfAMachine'
  on cortex-a72 baseline test_backends_cpu '-Peaks.AreThoseOfAMachine:Attention*:Sample*:*CpuOps*:*KvTypes*'
  on max i8mm test_backends_cpu '-Peaks.AreThoseOfAMachine'
fi
