#!/usr/bin/env bash
# Sets everything up and passes every everyday check: bash tests/run.sh [pytest arguments]
# The environments lie in .venv (everything) and .venv-core (no torch: the core and the simulator must not need it).
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
export CI=${CI:-true} # the same random examples everywhere; pytest by itself draws new ones

[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "torch==2.13.0" -e ".[dev]"
[ -x .venv-core/bin/python ] || "$python" -m venv .venv-core
.venv-core/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
  annotated-types pydantic pyyaml pytest pytest-timeout hypothesis coverage

group() { # NAME [pytest arguments]
  local core=.venv-core/bin/python all=.venv/bin/python rooms=(tests --ignore tests/core --ignore tests/sim --ignore tests/e2e)
  case $1 in
    style) .venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy && .venv/bin/lint-imports ;;
    core) $core -m coverage run -m pytest -p no:cacheprovider tests/core && $core -m coverage report ;;
    simulator) $core -m pytest -p no:cacheprovider tests/sim --share "$2" ;;
    uncounted) $core -m pytest -p no:cacheprovider tests/core tests/sim "${@:2}" ;; # a choice of tests covers what it covers
    rooms) OMP_NUM_THREADS=1 $all -m pytest "${rooms[@]}" --ignore tests/docs "${@:2}" ;;
    docs) $all -m pytest tests/docs ;;
    swarms) $all -m pytest "${@:2}" ;;
  esac
}
in_one_piece() { # what a group prints, and its seconds, once it has ended
  local output is_good=true
  output=$(group "$@" 2>&1) || is_good=false
  printf '== %s: %s s\n%s\n' "$*" "$SECONDS" "$output"
  "$is_good"
}
export -f group in_one_piece
both() { xargs -P 2 -L 1 bash -c 'in_one_piece "$@"' --; } # two groups at a time, in the order of the lines

if [ $# -gt 0 ]; then
  group uncounted "$@"
  group rooms "$@"
  group swarms tests/e2e tests/docs "$@"
  exit
fi
both <<'GROUPS'
rooms
simulator 1/3
simulator 2/3
simulator 3/3
core
style
GROUPS
# Whole swarms leave a core idle now and then; the commands of the documentation use it.
both <<'GROUPS'
swarms tests/e2e
docs
GROUPS
