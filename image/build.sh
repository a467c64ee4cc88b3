#!/usr/bin/env bash
# Builds the image; says which base and which wheels it takes. Called by `make image`.
#
#   image/build.sh [TAG]     default codespace:latest
#
# Reads ENGINE, BASE_IMAGE, EXTRA_PACKAGES. Without BASE_IMAGE: debian:trixie-slim where the engine has it or can pull it,
# else codespace-base:trixie, which is made if it is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tag=${1:-codespace:latest}
engine=$(image/engine.sh)
published=debian:trixie-slim
local_base=codespace-base:trixie
index="the package index"
say() { printf 'image: %s\n' "$*" >&2; }
has() { "$engine" image inspect "$1" >/dev/null 2>&1; }

if [ -n "${BASE_IMAGE:-}" ]; then
  base=$BASE_IMAGE
elif has "$published" || { ! has "$local_base" && timeout 120 "$engine" pull --quiet "$published" >/dev/null 2>&1; }; then
  base=$published
else
  has "$local_base" || { say "$published cannot be pulled"; image/base.sh "$local_base"; }
  base=$local_base
fi

made_for=$({ "$engine" image inspect --format '{{.Id}}' "$base" 2>/dev/null || true; cat requirements/build.txt requirements/runtime.txt; } | sha256sum | cut -d' ' -f1)
if [ -f image/wheelhouse/made-for ] && [ "$(cat image/wheelhouse/made-for)" = "$made_for" ]; then
  wheels=image/wheelhouse
elif [ "$base" = "$published" ]; then
  wheels=$index
  find image/wheelhouse -name '*.whl' -delete
else
  image/wheelhouse.sh "$base"
  wheels=image/wheelhouse
fi

version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
export DOCKER_BUILDKIT=${DOCKER_BUILDKIT:-0}
build() {
  say "$tag with $engine from $base, wheels from $wheels"
  "$engine" build --quiet --network host --file image/Containerfile --tag "$tag" --build-arg BASE_IMAGE="$base" \
    --label "org.opencontainers.image.base.name=$base" --build-arg VERSION="$version" \
    --build-arg EXTRA_PACKAGES="${EXTRA_PACKAGES:-}" . >/dev/null
}
if ! build; then
  # A registry may be reached where the index is not, or only by authorities that the base does not know.
  [ "$wheels" = "$index" ] || { echo "error: no image: $tag: see the messages above" >&2; exit 1; }
  image/wheelhouse.sh "$base"
  wheels=image/wheelhouse
  build || { echo "error: no image: $tag: see the messages above" >&2; exit 1; }
fi
say "$tag is $("$engine" image inspect --format '{{.Size}}' "$tag" | awk '{ printf "%d MB", $1 / 1e6 }') unpacked"
