#!/usr/bin/env bash
# Prints the container engine to use: $ENGINE, else docker or podman, whichever answers first. Called by the other scripts.
set -euo pipefail
for candidate in ${ENGINE:-docker podman}; do
  if command -v "$candidate" >/dev/null && "$candidate" info >/dev/null 2>&1; then
    echo "$candidate"
    exit 0
  fi
done
echo "error: no container engine answers: tried ${ENGINE:-docker and podman}: install docker.io or podman and start it, or set ENGINE=" >&2
exit 1
