#!/usr/bin/env bash
# Fills image/wheelhouse/ for a build that reaches no package index. Called by `make wheelhouse`.
#
#   image/wheelhouse.sh BASE_IMAGE
#
# The base's own Python picks and builds the wheels, in a container that may use this machine's network and trusts the
# authorities that this machine trusts. Downloads are checked against the hashes in requirements/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

base=${1:?usage: image/wheelhouse.sh BASE_IMAGE}
engine=$(image/engine.sh)
bundle=/etc/ssl/certs/ca-certificates.crt
mounts=()
[ ! -r "$bundle" ] || mounts+=(--volume "$bundle:/host-ca.crt:ro" --env PIP_CERT=/host-ca.crt)
printf 'wheelhouse: wheels for the Python of %s\n' "$base" >&2
find image/wheelhouse -name '*.whl' -delete
"$engine" run --rm --network host "${mounts[@]}" --volume "$PWD/requirements:/requirements:ro" \
  --volume "$PWD/image/wheelhouse:/wheelhouse" --env OWNER="$(id -u):$(id -g)" "$base" sh -euc '
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq -o Acquire::Retries=5
    apt-get install -qq -y -o Acquire::Retries=5 --no-install-recommends python3-venv python3-dev gcc libc6-dev libcap-dev >/dev/null
    python3 -m venv /tools
    pip="/tools/bin/python -m pip --disable-pip-version-check --no-input --retries 10"
    $pip install --quiet --require-hashes -r /requirements/build.txt
    $pip wheel --quiet --wheel-dir /wheelhouse --require-hashes -r /requirements/build.txt
    $pip wheel --quiet --wheel-dir /wheelhouse --require-hashes --no-build-isolation -r /requirements/runtime.txt
    chown -R "$OWNER" /wheelhouse' || {
  echo "error: no wheelhouse: $base: see the messages above; the package index and Debian's archive must be reachable" >&2
  exit 1
}
# Which base and which lock they are for: `make image` does not use others.
{ "$engine" image inspect --format '{{.Id}}' "$base"; cat requirements/build.txt requirements/runtime.txt; } |
  sha256sum | cut -d' ' -f1 >image/wheelhouse/made-for
