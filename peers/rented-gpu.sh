#!/usr/bin/env bash
# Start command for rented GPUs, configured by environment variables only; one peer, which trains on all GPUs of the machine:
#
#   ADLOCO_PEERS      join link, or addresses separated by spaces (required)
#   ADLOCO_WORKDIR    where identity and data lie; a volume that outlives the machine (default /workspace/adloco)
#   ADLOCO_PORT       TCP port (default: 31337 where the provider maps it, else any)
#   ADLOCO_ANNOUNCE   address that others reach the peer at (default: from the provider's variables, below)
#   ADLOCO_GRACE      seconds that the round may go on for after SIGTERM (default 25: spot machines give 30)
#   ADLOCO_SET        further settings, separated by spaces, such as "max_instances=2 upload_bytes_per_second=0"
#   ADLOCO_PER_GPU    1: one peer per GPU of CUDA_VISIBLE_DEVICES, or that nvidia-smi lists, on ports in a row (default 0)
#   ADLOCO_SOURCE     what pip installs where adloco-peer is missing (default: the checkout that this script lies in)
#
# RunPod and Vast.ai map a port that the template opens and say where in variables of the machine: RUNPOD_PUBLIC_IP and
# RUNPOD_TCP_PORT_31337, PUBLIC_IPADDR and VAST_TCP_PORT_31337. Open TCP 31337, and one port more per further peer. Lambda gives every
# machine a public address of its own and maps nothing: open the port in its firewall, and peers find the address themselves.
# Without an open port a peer takes part through relays.
set -euo pipefail
: "${ADLOCO_PEERS:?set it to a join link, or to the addresses of peers}"
workdir=${ADLOCO_WORKDIR:-/workspace/adloco}

if ! command -v adloco-peer > /dev/null; then
  source=${ADLOCO_SOURCE:-$(cd "$(dirname "$0")/.." && pwd)}
  [ -x "$workdir.venv/bin/python" ] || python3 -m venv "$workdir.venv"
  "$workdir.venv/bin/pip" install --quiet --disable-pip-version-check -c "$source/constraints.txt" "${source}[gpu,finetune]"
  PATH=$workdir.venv/bin:$PATH
fi

public=${RUNPOD_PUBLIC_IP:-${PUBLIC_IPADDR:-}}
mapped_port() { # PORT in the machine -> the port outside; nothing where it is not mapped
  local runpod=RUNPOD_TCP_PORT_$1 vast=VAST_TCP_PORT_$1
  echo "${!runpod:-${!vast:-}}"
}
port=${ADLOCO_PORT:-$([ -z "$public" ] || [ -z "$(mapped_port 31337)" ] || echo 31337)}
announced() { # PORT -> the address of the peer that listens there
  local outside
  outside=$(mapped_port "$1")
  [ -z "$public" ] || [ -z "$outside" ] || echo "/ip4/$public/tcp/$outside"
}

gpus=1
if [ "${ADLOCO_PER_GPU:-0}" = 1 ]; then
  IFS=, read -ra visible <<< "${CUDA_VISIBLE_DEVICES:-}"
  gpus=${#visible[@]}
  [ "$gpus" -gt 0 ] || gpus=$(nvidia-smi --list-gpus | grep -c ^GPU)
fi
read -ra peers <<< "$ADLOCO_PEERS"
read -ra settings <<< "${ADLOCO_SET:-}"
settings=("grace_seconds=${ADLOCO_GRACE:-25}" "${settings[@]}")
mkdir -p "$workdir"

if [ "$gpus" -gt 1 ]; then
  for ((gpu = 0; gpu < gpus && ${port:-0} > 0; gpu++)); do
    export "ADLOCO_PORT_$gpu=$((port + gpu))" "ADLOCO_ANNOUNCE_$gpu=$(announced $((port + gpu)))"
  done
  if [ -n "${ADLOCO_ANNOUNCE:-}" ]; then
    export ADLOCO_ANNOUNCE_0=$ADLOCO_ANNOUNCE
  fi
  # exec: the provider's SIGTERM reaches the script, which passes it on.
  exec bash "$(dirname "$0")/several-gpus.sh" "$workdir" --initial-peers "${peers[@]}" --peer-set "${settings[@]}"
fi
announce=${ADLOCO_ANNOUNCE:-$(announced "${port:-0}")}
# exec: the provider's SIGTERM reaches the node, which ends its round, hands over and leaves with exit code 0.
exec adloco-peer join --initial-peers "${peers[@]}" --workdir "$workdir" --plain \
  --host-maddrs "/ip4/0.0.0.0/tcp/${port:-0}" \
  ${announce:+--announce-maddrs "$announce"} \
  --peer-set "${settings[@]}"
