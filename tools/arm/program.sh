#!/usr/bin/env bash
# Cross-compiles the whole program for aarch64 and runs it under qemu-user: tiny models of every architecture and format
# against llama.cpp, a real model's text on processors with and without the extensions, structured output over TLS, the
# tests of grammar and server. Half an hour on two cores; what needs less is in test.sh.
#   tools/arm/program.sh
# Installs what it needs as ./test does, but libssl-dev for arm64, which is unpacked into build-arm/packages.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
cd "$root"
need_packages $build_packages g++-aarch64-linux-gnu qemu-user googletest curl openssl
need_venv .venv tests/requirements.txt
python3 tools/fetch_models.py default
export ARGENT_MODELS=${ARGENT_MODELS:-${XDG_CACHE_HOME:-$HOME/.cache}/argent/models}
unset ARGENT_XGRAMMAR_ROOT  # names one for this processor
build=$root/build-arm

packages=$build/packages
if [ ! -e "$packages/usr/lib/aarch64-linux-gnu/libssl.a" ]; then
  say "fetching libssl-dev for arm64"
  mkdir -p "$build"/apt/{lists/partial,archives/partial} "$packages"
  # apt's own lists and an empty status: this machine's packages and lists stay as they are.
  (
    cd "$build/apt"
    apt=(apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o "Dir::State::Lists=$PWD/lists"
      -o Dir::State::status=/dev/null -o "Dir::Cache=$PWD" -o APT::Sandbox::User=root)
    "${apt[@]}" update && "${apt[@]}" download libssl-dev && dpkg -x libssl-dev_*.deb "$packages"
  ) || { echo "no libssl-dev for arm64: apt-get found no package of that architecture" >&2 && exit 1; }
fi

toolchain=-DCMAKE_TOOLCHAIN_FILE=$root/cmake/aarch64-linux.cmake
need_xgrammar -aarch64 "$toolchain"
say "building"
build "$build" "argent test_grammar test_server" -DCMAKE_BUILD_TYPE=Release -DARGENT_TESTS=ON "$toolchain" \
  "-DCMAKE_PROJECT_TOP_LEVEL_INCLUDES=$root/tools/arm/build.cmake" "-DARGENT_ARM_PACKAGES=$packages" \
  "-DARGENT_XGRAMMAR_ROOT=${XDG_CACHE_HOME:-$HOME/.cache}/argent/xgrammar-$xgrammar_version-aarch64"

export QEMU_LD_PREFIX=/usr/aarch64-linux-gnu QEMU_CPU=max
run=$build/run  # for tests that take one program
printf '#!/bin/sh\nexec qemu-aarch64 "%s/argent" "$@"\n' "$build" >"$run" && chmod +x "$run"
failed=0
# same WHAT SEEN WANTED
same() {
  if [ "$2" = "$3" ]; then echo "ok      $1"; else printf 'FAILED  %s: %q, wanted %q\n' "$1" "$2" "$3" && failed=1; fi
}

say "running"
same version "$("$run" --version)" "argent $(sed -n 's/^project(argent VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)"

# What x86-64 says, too: the CPU's kernels give the same bits (docs/decisions/0012-arm.md).
for cpu in max neoverse-n1 cortex-a72; do
  same "text on $cpu" "$(QEMU_CPU=$cpu "$run" complete "The capital of France is" --temp 0 -n 8 -q)" \
    $' Paris.\n\nThe United States has'
done

server=
trap '[ -z "$server" ] || kill "$server"' EXIT
openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=DNS:localhost \
  -keyout "$build/key.pem" -out "$build/cert.pem" 2>/dev/null
"$run" serve --port 0 --tls-cert "$build/cert.pem" --tls-key "$build/key.pem" 2>"$build/serve.log" & server=$!
until port=$(sed -n 's/.*serving at .*:\([0-9]*\)$/\1/p' "$build/serve.log") && [ -n "$port" ]; do
  kill -0 "$server" 2>/dev/null || { cat "$build/serve.log" >&2 && exit 1; }
  sleep 1
done
answer=$(curl -sS --cacert "$build/cert.pem" "https://localhost:$port/v1/chat/completions" -d '
  {"temperature": 0, "max_tokens": 32, "messages": [{"role": "user", "content": "What is the capital of France?"}],
  "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties":
    {"city": {"enum": ["Oslo", "Paris", "Rome"]}}, "required": ["city"], "additionalProperties": false}}}}' |
  python3 -c 'import json, sys; print(json.load(sys.stdin)["choices"][0]["message"]["content"])') || true
same "structured output over TLS" "$answer" $'{\n"city": "Paris"\n}'
kill "$server"
stopped=0
wait "$server" || stopped=$?
server=
same "server's exit code after SIGTERM" "$stopped" 0

for test in test_grammar test_server; do
  qemu-aarch64 "$build/$test" --gtest_brief=1 || failed=1
done
.venv/bin/python tests/oracle/tiny_test.py "$run" >"$build/tiny.log" || failed=1
grep ^FAIL "$build/tiny.log" || true
tail -n 1 "$build/tiny.log"
exit $failed
