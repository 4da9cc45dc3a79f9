#!/usr/bin/env bash
# One peer per GPU: bash peers/several-gpus.sh DIR [arguments of `adloco-peer join` except --workdir]
#
# Each gets its own directory DIR/gpu-N, so its own identity, and a free port, or the one that ADLOCO_PORT_N names; others reach
# it at ADLOCO_ANNOUNCE_N where that is set. What it says goes to DIR/gpu-N.log. Ctrl-C and SIGTERM reach all of them. Ends with
# the worst of their exit codes.
set -euo pipefail
if [ $# -lt 3 ]; then
  sed -n '2p' "$0" >&2
  exit 2
fi
directory=$1
shift
if ! command -v nvidia-smi > /dev/null; then
  echo "several-gpus.sh: no nvidia-smi here, so no NVIDIA GPU is known; on one device: adloco-peer join ... --workdir $directory" >&2
  exit 2
fi
mkdir -p "$directory"
gpus=$(nvidia-smi --list-gpus | wc -l)

pids=()
for ((gpu = 0; gpu < gpus; gpu++)); do
  port=ADLOCO_PORT_$gpu announce=ADLOCO_ANNOUNCE_$gpu
  adloco-peer join "$@" --workdir "$directory/gpu-$gpu" --plain --host-maddrs "/ip4/0.0.0.0/tcp/${!port:-0}" \
    ${!announce:+--announce-maddrs "${!announce}"} \
    --peer-set "device=cuda:$gpu" > "$directory/gpu-$gpu.log" 2>&1 &
  pids+=($!)
done
# A job in the background ignores Ctrl-C: they get a SIGTERM instead, which leaves the round `grace_seconds` to end.
trap 'kill -TERM "${pids[@]}" 2> /dev/null || true' INT TERM
echo "${#pids[@]} peers, one per GPU; their logs: $directory/gpu-*.log"

worst=0
for pid in "${pids[@]}"; do
  code=0
  wait "$pid" || code=$?
  while kill -0 "$pid" 2> /dev/null; do # the wait was interrupted by the signal, the peer still ends its round
    code=0
    wait "$pid" || code=$?
  done
  [ "$code" -le "$worst" ] || worst=$code
done
exit "$worst"
