#!/usr/bin/env bash
# Starts the image with the least privilege that it needs. Called by `make up`; `make down` ends it.
#
#   deploy/up.sh [TAG]     default codespace:latest
#
# Reads ENGINE; NAME (default codespace); FLAGS, more words for `docker run`, such as --memory 8g. HOME_DIR (default
# deploy/local) holds etc/registry.json, workspaces/, data/ and run/, which are made if they are missing, with a workspace
# called demo. The appliance runs as CODESPACE_UID:CODESPACE_GID, by default the caller, or 10001 where that is root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tag=${1:-codespace:latest}
name=${NAME:-codespace}
home=$(realpath -m "${HOME_DIR:-deploy/local}")
engine=$(image/engine.sh)
uid=${CODESPACE_UID:-$(id -u)} gid=${CODESPACE_GID:-$(id -g)}
if [ "$uid" -eq 0 ]; then uid=10001 gid=10001; fi
say() { printf 'up: %s\n' "$*" >&2; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

"$engine" image inspect "$tag" >/dev/null 2>&1 || fail "no image: $tag: run make image"
mkdir -p "$home"/{etc,workspaces,data,run}
if [ ! -e "$home/etc/registry.json" ]; then
  mkdir -p "$home/workspaces/demo"
  printf '{"workspaces": {"demo": {"root": "/workspaces/demo", "profile": "workspace-write"}}}\n' >"$home/etc/registry.json"
fi
if [ "$(id -u)" -eq 0 ]; then chown -R "$uid:$gid" "$home"/{workspaces,data,run}; fi
chmod 0700 "$home/data"

flags=(--user "$uid:$gid" --cap-drop ALL --security-opt no-new-privileges --read-only --tmpfs /tmp)
case $(basename "$engine") in
  # Podman's default profile permits what the sandbox needs, and it has another word for /proc as the kernel made it.
  podman*)
    flags+=(--security-opt unmask=ALL)
    # Without root there, a user is itself inside only by this.
    [ "$(id -u)" -eq 0 ] || flags+=(--userns keep-id)
    ;;
  *) flags+=(--security-opt "seccomp=$PWD/image/seccomp.json" --security-opt systempaths=unconfined) ;;
esac
if [ -r /sys/module/apparmor/parameters/enabled ] && grep -q Y /sys/module/apparmor/parameters/enabled; then
  # The engine's own profile refuses user namespaces; ours permits them.
  grep -qs '^codespace ' /sys/kernel/security/apparmor/profiles || say "load the AppArmor profile first: sudo apparmor_parser -r image/apparmor/codespace"
  flags+=(--security-opt apparmor=codespace)
fi

read -ra more <<<"${FLAGS:-}"
flags+=("${more[@]}")

"$engine" rm --force "$name" >/dev/null 2>&1 || true
"$engine" run --detach --name "$name" --restart unless-stopped --stop-timeout 10 "${flags[@]}" \
  --env CODESPACE_ALLOW_UIDS="0,$uid" \
  --volume "$home/etc:/etc/codespace:ro" --volume "$home/workspaces:/workspaces" \
  --volume "$home/data:/data" --volume "$home/run:/run/codespace" "$tag" >/dev/null
# The appliance answers, or has ended: whichever comes first.
for _ in $(seq 100); do
  if curl --silent --fail --max-time 2 --output /dev/null --unix-socket "$home/run/mcp.sock" http://localhost/readyz 2>/dev/null; then
    say "$name serves at $home/run/mcp.sock as uid $uid"
    exit 0
  fi
  case $("$engine" inspect --format '{{.State.Status}} {{.RestartCount}}' "$name") in
    "running 0" | "created 0") sleep 0.1 ;;
    *) break ;;
  esac
done
"$engine" logs "$name" 2>&1 | grep '^error: ' | tail -n 1 >&2 || true
"$engine" stop --time 5 "$name" >/dev/null 2>&1 || true
fail "not ready: $name: $engine logs $name says why"
