#!/usr/bin/env bash
# Writes requirements/*.txt anew from pyproject.toml and requirements/build.in. Called by `make lock`.
#
# Versions already locked stay unless a range in pyproject.toml forbids them; `make lock UPGRADE=1` takes the newest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
.venv/bin/python -m venv "$work/venv"
"$work/venv/bin/python" -m pip --disable-pip-version-check install --quiet 'uv>=0.9'
compile() { # output, sources…
  local output=$1
  shift
  "$work/venv/bin/uv" pip compile --quiet --no-config --universal --python-version 3.11 --generate-hashes \
    --custom-compile-command 'make lock' --no-annotate ${UPGRADE:+--upgrade} --output-file "$work/$output" "$@"
  # Wheels of other systems are of no use here, and their lines could not be tested.
  "$work/venv/bin/python" - "$work/$output" "requirements/$output" <<'PY'
import re, sys
from pathlib import Path

text = Path(sys.argv[1]).read_text()
head, *entries = re.split(r"(?m)^(?=[A-Za-z0-9])", text)
foreign = re.compile(r"^[^\n]*;[^\n]*(sys_platform == '(win32|emscripten)'|os_name == 'nt')")
Path(sys.argv[2]).write_text(head + "".join(entry for entry in entries if not foreign.search(entry)))
PY
}
for name in build runtime dev bench; do
  if [ -f "requirements/$name.txt" ]; then cp "requirements/$name.txt" "$work/$name.txt"; fi
done
compile build.txt --allow-unsafe requirements/build.in
compile runtime.txt --extra ripgrep pyproject.toml
compile dev.txt --extra ripgrep --extra dev -c requirements/runtime.txt pyproject.toml
compile bench.txt --extra bench -c requirements/dev.txt pyproject.toml
