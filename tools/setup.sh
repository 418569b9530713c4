# Sourced by quickstart and test: installs Debian packages by name where they are missing, and makes the Python
# environments. Quick when everything is there.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

build_packages="g++ cmake ninja-build python3 python3-venv libfmt-dev nlohmann-json3-dev libcli11-dev libboost1.81-dev libssl-dev"
test_packages="libgtest-dev clang libclang-rt-14-dev chromium"

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

# build FOLDER TARGETS CMAKE_ARGUMENTS...: configures (a second where nothing changed), then builds.
build() {
  local dir=$1 targets=$2
  shift 2
  cmake -S "$root" -B "$dir" -G Ninja "$@" >/dev/null
  # shellcheck disable=SC2086
  ninja -C "$dir" $targets
}
