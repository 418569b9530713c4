#!/usr/bin/env bash
# Gathers the program, its CUDA part, its tests and the shared libraries they need, so that they run on a machine of another
# distribution (glibc as new as this one's; the driver is the machine's own).
#   tools/cuda/pack.sh OUT [BUILD] [FILE...]     BUILD: build; FILE: what else goes along, such as a model
# There: OUT/run argent devices; OUT/run test_cuda; bash OUT/verify.sh OUT
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=$1 build=${2:-$root/build}
shift $(($# < 2 ? $# : 2))
mkdir -p "$out/lib"
programs=(argent libargent_cuda.so test_cuda)
for name in "${programs[@]}"; do
  [ -e "$build/$name" ] || { echo "pack.sh: no $build/$name; build it: ninja -C $build ${name/libargent_cuda.so/argent_cuda_part}" >&2; exit 4; }
  strip --strip-unneeded -o "$out/$name" "$build/$name"
done
# All but glibc's own, which belong to the machine's loader.
ldd "${programs[@]/#/$build/}" | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | sort -u |
  grep -Ev '/(libc|libm|libdl|librt|libpthread|libresolv|ld-linux[^/]*)\.so' | while read -r library; do
  strip --strip-unneeded -o "$out/lib/$(basename "$library")" "$library"
done
cp "$root"/tools/cuda/verify.sh "$root"/tools/cuda/bench.py "$out/"
[ $# -eq 0 ] || cp "$@" "$out/"
cat >"$out/run" <<'RUN'
#!/usr/bin/env bash
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
program=$1
shift
exec "$here/$program" "$@"
RUN
chmod +x "$out/run"
glibc=$(for name in "${programs[@]}"; do objdump -T "$out/$name"; done | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
du -sk "$out" | awk -v out="$out" -v glibc="$glibc" '{printf "%s: %.1f MB, wants %s\n", out, $1 / 1000, glibc}'
