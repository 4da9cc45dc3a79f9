#!/usr/bin/env bash
# Sets everything up and passes every everyday check: bash tests/run.sh [pytest arguments]
# The environments lie in .venv (everything) and .venv-core (no torch: the core and the simulator must not need it).
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
export CI=${CI:-true} # the same random examples everywhere; pytest by itself draws new ones
export OMP_NUM_THREADS=1
unset PYTHONDONTWRITEBYTECODE # a module is compiled once, not by each process that imports it

install() { # FOLDER [pip arguments]
  [ -x "$1/bin/python" ] || "$python" -m venv "$1"
  "$1/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt "${@:2}"
}
install_core() { install .venv-core annotated-types pydantic pyyaml pytest pytest-timeout hypothesis slipcover; }
install_all() { install .venv "torch==2.13.0" -e ".[dev]"; }

if [ $# -gt 0 ]; then # a choice of tests; it covers what it covers
  install_core
  install_all
  num_empty=0
  chosen() { # none of the chosen tests may be among these: pytest ends with 5
    local code=0
    "$@" || code=$?
    [ "$code" -ne 5 ] || { code=0 num_empty=$((num_empty + 1)); }
    return "$code"
  }
  chosen .venv-core/bin/python -m pytest -p no:cacheprovider tests/core tests/sim "$@"
  chosen .venv/bin/python -m pytest tests --ignore tests/core --ignore tests/sim --ignore tests/e2e --ignore tests/docs "$@"
  chosen .venv/bin/python -m pytest tests/e2e tests/docs "$@"
  [ "$num_empty" -lt 3 ] || { echo "no test was chosen: $*" >&2; exit 5; }
  exit
fi

group() { # core, simulator, style, rooms (what no other group has) or folders; pytest arguments
  local core=.venv-core/bin/python all=.venv/bin/python others=(tests/{core,sim,e2e,docs,training,benchmarks,swarm})
  case $1 in
    # Lines and branches of the pure core that its own tests reach: whole simulated worlds would hide what no unit test does.
    core) $core -m slipcover --branch --source adloco_p2p/core --skip-covered --fail-under 97 -m pytest -p no:cacheprovider tests/core ;;
    simulator) $core -m pytest -p no:cacheprovider tests/sim "${@:2}" ;;
    style) .venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy && .venv/bin/lint-imports ;;
    rooms) $all -m pytest tests "${others[@]/#/--ignore=}" ;;
    *) $all -m pytest "$@" ;;
  esac
}
in_one_piece() { # what a group prints, and its seconds, once it has ended
  local output is_good=true
  output=$(group "$@" 2>&1) || is_good=false
  printf '== %s: %s s\n%s\n' "$*" "$SECONDS" "$output"
  "$is_good"
}
export -f group in_one_piece
queue() { # in the order in which they begin; those that need no torch do while it is installed
  printf '%s\n' core 'simulator --share 1/3' 'simulator --share 2/3' 'simulator --share 3/3'
  install_all >&2
  printf '%s\n' tests/{e2e,swarm,training} rooms tests/{benchmarks,docs} style
}
install_core
# Three at a time keep two cores busy: whole swarms, which often wait, begin before what only computes.
queue | xargs -P 3 -L 1 bash -c 'in_one_piece "$@"' --
