#!/usr/bin/env bash
# Tests the CUDA backend on a machine with a GPU, in one go and without a network: test_cuda, a part of it under each tool of
# compute-sanitizer, and the program's logits, 24 times the same.
#   bash tools/cuda/verify.sh [FOLDER] [MODEL.gguf] >verify.jsonl
# FOLDER has argent, libargent_cuda.so and test_cuda: a build, or what tools/cuda/pack.sh made. One JSON line a check; ok is
# null where a check could not be made, and why stands in detail. Exit code 1: one is false.
# Seconds that one check may take: ARGENT_VERIFY_SECONDS (300). Cases under the sanitizers: every ARGENT_VERIFY_EVERY-th (5).
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$(cd "${1:-$here/../../build}" && pwd) || exit 2
model=${2:-}
[ ! -d "$folder/lib" ] || export LD_LIBRARY_PATH=$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
seconds=${ARGENT_VERIFY_SECONDS:-300}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

quote() { head -c 4000 | tr -d '\000-\010\013-\037' | sed -z 's/\\/\\\\/g; s/"/\\"/g; s/\t/ /g; s/\n*$//; s/\n/\\n/g'; }
# line CHECK OK SECONDS DETAIL
line() {
  printf '{"check": "%s", "ok": %s, "seconds": %d, "detail": "%s"}\n' "$1" "$2" "$3" "$(printf '%s' "$4" | quote)"
  [ "$2" != false ] || failed=1
}
# What a log of gtest's, with a tool's lines among them, says in few lines.
summary() {
  grep -a SUMMARY "$1"
  grep -aE '^(steps|models|K) .*tolerated$|^timed out' "$1"
  grep -aE '^=+ (Invalid|Error|Uninit|Race|Barrier|Program|    at )' "$1" | head -n 12
  grep -aA3 ': Failure$' "$1" | cut -c -300 | head -n 30
  grep -aE '^\[  (FAILED|PASSED) ' "$1" | head -n 8 || tail -n 5 "$1"
}

start=$SECONDS
if devices=$("$folder/argent" devices 2>&1) && grep -q '^cuda:0 ' <<<"$devices"; then
  line devices true $((SECONDS - start)) "$devices"
else
  line devices false $((SECONDS - start)) "$devices"
  exit 1
fi

# gtest NAME FILTER [COMMAND...]: the tests of the filter, by a tool where one is named.
gtest() {
  local name=$1 filter=$2 start=$SECONDS rc=0 ok=true
  shift 2
  timeout -k 10 "$seconds" "$@" "$folder/test_cuda" --gtest_color=no --gtest_filter="$filter" >"$work/log" 2>&1 || rc=$?
  [ "$rc" != 124 ] && [ "$rc" != 137 ] || echo "timed out after $seconds s" >>"$work/log"
  # A filter that nothing matches would pass.
  [ "$rc" = 0 ] && grep -q '^\[  PASSED  \] [1-9]' "$work/log" || ok=false
  line "$name" $ok $((SECONDS - start)) "$(summary "$work/log")"
}

for suite in 'CudaPart.*' 'CudaOps.FewRows' 'CudaOps.AnyRows' 'CudaOps.Rows*' '*CudaOpsOfTheCache*' 'CudaModels.Logits*:CudaModels.Float*:CudaModels.Every*:CudaModels.Leaving*' \
  'CudaModels.Rows*:CudaModels.Blocks*' 'CudaModels.RunsAreTheSame' 'CudaModels.GreedyTextsAreTheSame'; do
  gtest "test_cuda $suite" "$suite"
done

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer /usr/local/cuda*/compute-sanitizer/compute-sanitizer 2>/dev/null | head -n 1)
for tool in memcheck racecheck initcheck synccheck; do
  if [ -z "$sanitizer" ]; then
    line $tool null 0 "compute-sanitizer is not on this machine"
    continue
  fi
  gtest "$tool" 'CudaOps.AnyRows:CudaModels.EveryTypeOfTheCache:CudaModels.FloatWeights:CudaModels.BlocksOfTheCacheGoOnElsewhere' env ARGENT_TEST_EVERY="${ARGENT_VERIFY_EVERY:-5}" "$sanitizer" --tool $tool --error-exitcode 9
done

if [ -z "$model" ]; then
  line runs null 0 "no model was given"
  exit $failed
fi
start=$SECONDS
for i in $(seq 24); do
  "$folder/argent" logits -m "$model" --device cuda:0 --tokens "$(seq -s, 1 40)" --out "$work/logits" >"$work/log" 2>&1 || { echo "run $i failed" >>"$work/sums"; tail -n 2 "$work/log" >>"$work/sums"; break; }
  sha256sum <"$work/logits" >>"$work/sums"
done
[ "$(sort -u "$work/sums" | wc -l)" = 1 ] && [ "$(wc -l <"$work/sums")" = 24 ] && ok=true || ok=false
line runs $ok $((SECONDS - start)) "$(sort "$work/sums" | uniq -c)"
exit $failed
