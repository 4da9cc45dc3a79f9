#!/usr/bin/env bash
# Start command for rented GPUs, configured by environment variables only:
#
#   ADLOCO_PEERS      join link, or addresses separated by spaces (required)
#   ADLOCO_WORKDIR    where identity and data lie; a volume that outlives the machine (default /workspace/adloco)
#   ADLOCO_PORT       TCP port to listen on (default: any)
#   ADLOCO_ANNOUNCE   address that others reach it at, where the provider maps ports, such as /ip4/203.0.113.7/tcp/40123
#   ADLOCO_GRACE      seconds that the round may go on for after SIGTERM (default 25: spot machines give 30)
#   ADLOCO_SET        further settings, separated by spaces, such as "device=cuda:0 upload_bytes_per_second=0"
#   ADLOCO_SOURCE     what pip installs where adloco-peer is missing (default: the checkout that this script lies in)
set -euo pipefail
: "${ADLOCO_PEERS:?set it to a join link, or to the addresses of peers}"
workdir=${ADLOCO_WORKDIR:-/workspace/adloco}

if ! command -v adloco-peer > /dev/null; then
  source=${ADLOCO_SOURCE:-$(cd "$(dirname "$0")/.." && pwd)}
  [ -x "$workdir.venv/bin/python" ] || python3 -m venv "$workdir.venv"
  "$workdir.venv/bin/pip" install --quiet --disable-pip-version-check -c "$source/constraints.txt" "$source"
  PATH=$workdir.venv/bin:$PATH
fi

read -ra peers <<< "$ADLOCO_PEERS"
read -ra settings <<< "${ADLOCO_SET:-}"
mkdir -p "$workdir"
# exec: the provider's SIGTERM reaches the node, which ends its round, hands over and leaves with exit code 0.
exec adloco-peer join --initial-peers "${peers[@]}" --workdir "$workdir" --plain \
  --host-maddrs "/ip4/0.0.0.0/tcp/${ADLOCO_PORT:-0}" \
  ${ADLOCO_ANNOUNCE:+--announce-maddrs "$ADLOCO_ANNOUNCE"} \
  --peer-set "grace_seconds=${ADLOCO_GRACE:-25}" "${settings[@]}"
