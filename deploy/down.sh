#!/usr/bin/env bash
# Ends what `make up` started. Data and workspaces stay.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
engine=$(image/engine.sh)
"$engine" stop --time 10 "${NAME:-codespace}" >/dev/null
"$engine" rm "${NAME:-codespace}" >/dev/null
