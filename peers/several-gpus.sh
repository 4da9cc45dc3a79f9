#!/usr/bin/env bash
# One peer per GPU: bash peers/several-gpus.sh DIR [arguments of `adloco-peer join` except --workdir]
#
# Of the GPUs that CUDA_VISIBLE_DEVICES names where it is set, else of all.
# Each gets its own directory DIR/gpu-N, so its own identity, and a free port, or the one that ADLOCO_PORT_N names; others reach
# it at ADLOCO_ANNOUNCE_N where that is set. Its output goes to DIR/gpu-N.log. A peer that crashes, or loses the network, is
# started again after ADLOCO_RESTART_SECONDS (10), each time twice as long up to ten minutes, and as at first where it ran for
# longer than the pause; one that is done, or that cannot start (exit codes 2 and 5), is not. Ctrl-C and SIGTERM reach all
# of them. Ends with the worst of their exit codes.
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
IFS=, read -ra visible <<< "${CUDA_VISIBLE_DEVICES:-}"
gpus=${#visible[@]}
[ "$gpus" -gt 0 ] || gpus=$(nvidia-smi --list-gpus | grep -c ^GPU) # the parts of a GPU that MIG makes have lines of their own

# One GPU's peer, until it is done, cannot start, or SIGTERM comes.
keep_up() {
  local gpu=$1 child="" stopping="" code=0 first=${ADLOCO_RESTART_SECONDS:-10} started
  local port=ADLOCO_PORT_$gpu announce=ADLOCO_ANNOUNCE_$gpu pause=$first
  shift
  trap 'stopping=1 interrupted=1; [ -z "$child" ] || kill -TERM "$child" 2> /dev/null || true' TERM
  while [ -z "$stopping" ]; do
    started=$SECONDS
    adloco-peer join "$@" --workdir "$directory/gpu-$gpu" --plain --host-maddrs "/ip4/0.0.0.0/tcp/${!port:-0}" \
      ${!announce:+--announce-maddrs "${!announce}"} \
      --peer-set "device=cuda:$gpu" &
    child=$!
    [ -z "$stopping" ] || kill -TERM "$child" 2> /dev/null || true # it came before `child` was set
    await "$child"
    child=""
    case $code in 0 | 2 | 5) break ;; esac
    [ -z "$stopping" ] || break
    [ $((SECONDS - started)) -le "$pause" ] || pause=$first
    echo "gpu-$gpu ended with exit code $code; it starts again in $pause s"
    # In a shell of its own: where nobody reads any more, SIGPIPE ends that one.
    (echo "gpu-$gpu ended with exit code $code; it starts again in $pause s; see $directory/gpu-$gpu.log" >&3) 2> /dev/null || true
    sleep "$pause" &
    child=$!
    [ -z "$stopping" ] || kill -TERM "$child" 2> /dev/null || true
    wait "$child" || true
    child=""
    pause=$((pause * 2 < 600 ? pause * 2 : 600))
  done
  exit "$code"
}

# Sets `code` to the exit code of a process. A signal ends `wait` before the process, which still ends its round.
await() {
  local before=127
  while :; do
    interrupted="" code=0
    wait "$1" || code=$?
    [ "$code" -ne 127 ] || code=$before # the wait before this one had it already
    [ -n "$interrupted" ] || return 0
    before=$code
  done
}

pids=() stopping=""
# A job in the background ignores Ctrl-C: they get a SIGTERM instead, which leaves the round `grace_seconds` to end.
trap 'stopping=1 interrupted=1; kill -TERM "${pids[@]}" 2> /dev/null || true' INT TERM
exec 3>&2
for ((gpu = 0; gpu < gpus; gpu++)); do
  keep_up "$gpu" "$@" > "$directory/gpu-$gpu.log" 2>&1 &
  pids+=($!)
done
[ -z "$stopping" ] || kill -TERM "${pids[@]}" 2> /dev/null || true # it came before all of them were started
echo "${#pids[@]} peers, one per GPU; their logs: $directory/gpu-*.log"

worst=0
for pid in "${pids[@]}"; do
  await "$pid"
  [ "$code" -le "$worst" ] || worst=$code
done
exit "$worst"
