#!/usr/bin/env bash
# Makes .venv from the lock; repeated runs cost a few milliseconds. Called by the Makefile.
#
#   tools/setup.sh               what the program needs
#   tools/setup.sh --with-tests  and the programs that tests, demo and benchmarks start
#   tools/setup.sh --with-browser  and Chromium, for the console's tests: as a user without it they are skipped
#
# Reads PYTHON (default /usr/bin/python3: a version manager's shim costs up to 150 ms a start, and an interpreter below
# a home would be invisible inside a sandbox). As root on Debian it installs missing packages; as a user it names them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-/usr/bin/python3}
packages=(python3 python3-venv python3-dev gcc libc6-dev libcap-dev)
programs=(bubblewrap ca-certificates curl git make procps strace)
case "${1:-}" in
  "") ;;
  --with-tests) packages+=("${programs[@]}") ;;
  --with-browser)
    packages+=("${programs[@]}")
    # A page without any font is a page without text.
    if [ "$(id -u)" -eq 0 ]; then packages+=(chromium fonts-dejavu-core); fi
    ;;
  *)
    echo "error: unknown argument: $1: use --with-tests, --with-browser or nothing" >&2
    exit 2
    ;;
esac

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

install_system_packages() {
  local missing=() name state
  if ! command -v dpkg-query >/dev/null; then
    say "not a Debian system, so packages are not checked; needed are what Debian calls: ${packages[*]}"
    return
  fi
  for name in "${packages[@]}"; do
    # "ok installed", whatever was asked for (held packages count).
    state=$(dpkg-query -W -f '${Status}' "$name" 2>/dev/null || true)
    [[ $state == *" ok installed" ]] || missing+=("$name")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    fail "missing Debian packages: ${missing[*]}: run: sudo apt-get install --no-install-recommends ${missing[*]}"
  fi
  say "installing Debian packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq -o Acquire::Retries=5 -o DPkg::Lock::Timeout=600 </dev/null >&2 || fail "apt-get update failed: the package lists could not be read: check the network and /etc/apt"
  apt-get install -qq -y -o Acquire::Retries=5 -o DPkg::Lock::Timeout=600 -o Dpkg::Use-Pty=0 --no-install-recommends "${missing[@]}" </dev/null >/dev/null ||
    fail "apt-get install failed: ${missing[*]}: see the messages above"
}

install_system_packages
command -v "$python" >/dev/null || fail "no Python: $python: install Python 3.11 or later, or name one with PYTHON="
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "Python is too old: $python: 3.11 or later is needed"

# What the environment was made from. The folder is part of it: scripts in a venv name their interpreter by full path.
recipe=$({ "$python" -c 'import sys; print(sys.version, sys.base_prefix)'; pwd; cat tools/setup.sh pyproject.toml requirements/*.txt; } | sha256sum | cut -d' ' -f1)
place=$({ "$python" -c 'import sys; print(sys.version, sys.base_prefix)'; pwd; } | sha256sum | cut -d' ' -f1)
stamp=.venv/.made-from
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$place $recipe" ]; then
  exit 0
fi

# One at a time: two runs in one folder would install over each other.
exec 9>.setup.lock
flock 9
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$place $recipe" ]; then
  exit 0
fi
if [ -d .venv ] && { ! .venv/bin/python -m pip --version >/dev/null 2>&1 || { [ -f "$stamp" ] && [ "$(cut -d' ' -f1 "$stamp")" != "$place" ]; }; }; then
  say "replacing .venv: it belongs to another folder or interpreter, or is broken"
  rm -rf .venv
fi
if [ ! -d .venv ]; then
  say "making .venv with $python"
  "$python" -m venv .venv || fail "venv failed: $python: install its venv module (Debian: python3-venv)"
fi
rm -f "$stamp"
pip=(.venv/bin/python -m pip --disable-pip-version-check --no-input install --quiet)
say "installing packages from requirements/ (hashes checked)"
# Build tools first and isolation off: the one source package and the project itself are built with pinned tools.
"${pip[@]}" --require-hashes -r requirements/build.txt || fail "pip failed: requirements/build.txt: see the messages above"
"${pip[@]}" --require-hashes --no-build-isolation -r requirements/dev.txt ||
  fail "pip failed: requirements/dev.txt: see the messages above (python-prctl is built here: it needs gcc, python3-dev and libcap-dev)"
# Compatible mode is a plain path entry; the default hooks an import finder into every start of the interpreter.
"${pip[@]}" --no-deps --no-build-isolation --config-settings editable_mode=compat -e . ||
  fail "pip failed: the project itself: see the messages above"
printf '%s\n' "$place $recipe" >"$stamp"
say "ready: .venv/bin/codespace"
