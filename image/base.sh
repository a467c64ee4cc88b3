#!/usr/bin/env bash
# Makes a base image like debian:trixie-slim where no registry can be reached. Called by `make image-base`.
#
#   image/base.sh [TAG]      default codespace-base:trixie
#
# mmdebstrap checks every package against Debian's archive keys; SUITE and MIRROR choose another release or source.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tag=${1:-codespace-base:trixie}
suite=${SUITE:-trixie}
mirror=${MIRROR:-http://deb.debian.org/debian}
engine=$(image/engine.sh)

fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

if ! command -v mmdebstrap >/dev/null; then
  [ "$(id -u)" -eq 0 ] || fail "no mmdebstrap: on this machine: run: sudo apt-get install --no-install-recommends mmdebstrap"
  apt="apt-get -qq -o Acquire::Retries=5 -o DPkg::Lock::Timeout=600"
  { $apt update && DEBIAN_FRONTEND=noninteractive $apt install -y --no-install-recommends mmdebstrap; } </dev/null >/dev/null ||
    fail "apt-get install failed: mmdebstrap: see the messages above"
fi
printf 'image-base: %s from %s as %s\n' "$suite" "$mirror" "$tag" >&2
mode=$([ "$(id -u)" -eq 0 ] && echo root || echo unshare)
# What slim leaves out: manuals, translations and caches. Licences stay.
mmdebstrap --quiet --mode="$mode" --variant=minbase --include=ca-certificates \
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
  --dpkgopt='path-exclude=/usr/share/info/*' --dpkgopt='path-exclude=/usr/share/lintian/*' \
  --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Languages "none"' \
  --aptopt='Acquire::GzipIndexes "true"' --aptopt='Acquire::Retries "5"' \
  --customize-hook='rm -f "$1/etc/hostname" "$1/etc/resolv.conf"' \
  "$suite" - "deb $mirror $suite main" "deb $mirror $suite-updates main" \
  "deb http://deb.debian.org/debian-security $suite-security main" |
  "$engine" import --change 'CMD ["/bin/bash"]' - "$tag-unfinished" >/dev/null || {
  "$engine" image rm "$tag-unfinished" >/dev/null 2>&1 || true
  fail "no base image: $suite from $mirror: see the messages above"
}
# Whatever has the name is whole.
"$engine" tag "$tag-unfinished" "$tag"
"$engine" image rm "$tag-unfinished" >/dev/null
