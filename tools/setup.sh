# Sourced by quickstart and test: installs Debian packages by name where they are missing, and makes the Python
# environments. Quick when everything is there.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

build_packages="g++ cmake ninja-build python3 python3-venv libfmt-dev nlohmann-json3-dev libcli11-dev libboost1.81-dev libssl-dev libxxhash-dev"
test_packages="libgtest-dev clang libclang-rt-14-dev chromium curl openssl g++-aarch64-linux-gnu qemu-user googletest"

say() { printf '== %s\n' "$*" >&2; }

need_packages() {
  local missing=() p
  for p in "$@"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing+=("$p")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  say "installing ${missing[*]}"
  local sudo=""
  [ "$(id -u)" -eq 0 ] || sudo=sudo
  $sudo apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# need_venv FOLDER REQUIREMENTS: a Python environment that holds exactly what the file pins.
need_venv() {
  local venv=$1 wanted=$2
  cmp -s "$wanted" "$venv/installed.txt" 2>/dev/null && return 0
  say "installing Python packages of $(basename "$wanted")"
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check -r "$wanted"
  cp "$wanted" "$venv/installed.txt"
}

xgrammar_version=0.2.9
xgrammar_sha256=87b466bca2475e29bb0323abc62c6c33cbcbcff47e5fb800a3e2099ac9620b90

# need_xgrammar [SUFFIX CMAKE_OPTIONS...]: the library of src/grammar, built once per user from PyPI's source package into
# a cache folder that cmake/FindXGrammar.cmake knows; SUFFIX: into one beside it, for another processor. Made beside its
# place and renamed, so a folder that is there is whole.
# -fno-lto undoes the package's -flto=auto: such an archive links with the same g++ only, and takes half a minute.
need_xgrammar() {
  local suffix=${1:-} cache=${XDG_CACHE_HOME:-$HOME/.cache}/argent
  local root_dir=${ARGENT_XGRAMMAR_ROOT:-$cache/xgrammar-$xgrammar_version$suffix}
  [ $# -eq 0 ] || shift
  [ ! -e "$root_dir/lib/libxgrammar.a" ] || return 0
  [ -z "${ARGENT_XGRAMMAR_ROOT:-}" ] || { say "ARGENT_XGRAMMAR_ROOT=$root_dir has no lib/libxgrammar.a"; return 1; }
  say "building xgrammar $xgrammar_version$suffix (two minutes, once)"
  mkdir -p "$cache"
  (
    set -e
    work=$(mktemp -d "$cache/xgrammar-build.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    python3 -m venv "$work/venv"
    printf 'xgrammar==%s --hash=sha256:%s\n' "$xgrammar_version" "$xgrammar_sha256" >"$work/wanted.txt"
    "$work/venv/bin/pip" download -q --disable-pip-version-check --no-deps --no-binary=xgrammar --require-hashes \
      -d "$work" -r "$work/wanted.txt"
    tar xf "$work/xgrammar-$xgrammar_version.tar.gz" -C "$work"
    mkdir "$work/build"
    # The package's own file of options turns the Python bindings on and overrides the command line.
    printf 'set(CMAKE_BUILD_TYPE Release)\nset(XGRAMMAR_BUILD_PYTHON_BINDINGS OFF)\nset(XGRAMMAR_BUILD_CXX_TESTS OFF)\n' \
      >"$work/build/config.cmake"
    cmake -S "$work/xgrammar-$xgrammar_version" -B "$work/build" -G Ninja -DCMAKE_CXX_FLAGS=-fno-lto "$@" \
      -DCMAKE_INSTALL_PREFIX="$work/install" >"$work/log" 2>&1 &&
      ninja -C "$work/build" install >>"$work/log" 2>&1 || { tail -n 40 "$work/log" >&2; exit 1; }
    # Somebody else may have been first: a folder that is not empty is not replaced, and theirs is as good. (A Mac has no mv -T.)
    python3 -c 'import os, sys; os.rename(*sys.argv[1:])' "$work/install" "$root_dir" 2>/dev/null || [ -e "$root_dir/lib/libxgrammar.a" ]
  )
}

# build FOLDER TARGETS CMAKE_ARGUMENTS...: configures (a second where nothing changed), then builds. A new folder is for
# building everything once, so a room's files are compiled together; one that is there keeps what it was made with.
build() {
  local dir=$1 targets=$2
  shift 2
  [ -e "$dir/CMakeCache.txt" ] || set -- -DARGENT_UNITY=ON "$@"
  cmake -S "$root" -B "$dir" -G Ninja "$@" >/dev/null
  # shellcheck disable=SC2086
  ninja -C "$dir" $targets
}
