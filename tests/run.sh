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

# Three groups of about equal length on two cores; whole swarms, which want both, come after them.
echo "== core and simulator, where torch is not installed, and beside them style, types and everything that starts no swarm"
said_core=$(mktemp)
said_sim=$(mktemp)
core() {
  if [ $# -gt 0 ]; then # a choice of tests covers what it covers
    .venv-core/bin/python -m pytest -p no:cacheprovider tests/core tests/sim "$@"
    return
  fi
  .venv-core/bin/python -m coverage run -m pytest -p no:cacheprovider tests/core && .venv-core/bin/python -m coverage report
}
simulator() {
  [ $# -gt 0 ] || .venv-core/bin/python -m pytest -p no:cacheprovider tests/sim
}
core "$@" >"$said_core" 2>&1 &
core=$!
simulator "$@" >"$said_sim" 2>&1 &
simulator=$!
trap 'kill "$core" "$simulator" 2>/dev/null || true; rm -f "$said_core" "$said_sim"' EXIT
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
.venv/bin/lint-imports
OMP_NUM_THREADS=1 .venv/bin/python -m pytest tests --ignore tests/core --ignore tests/sim --ignore tests/e2e --ignore tests/docs "$@"
is_good=true
wait "$core" || is_good=false
wait "$simulator" || is_good=false
cat "$said_core" "$said_sim"
"$is_good"

echo "== whole swarms, and every command of the documentation"
if [ $# -gt 0 ]; then
  .venv/bin/python -m pytest tests/e2e tests/docs "$@"
  exit
fi
said_docs=$(mktemp)
.venv/bin/python -m pytest tests/docs >"$said_docs" 2>&1 &
docs=$!
trap 'kill "$docs" 2>/dev/null || true; rm -f "$said_core" "$said_sim" "$said_docs"' EXIT
.venv/bin/python -m pytest tests/e2e
wait "$docs" || is_good=false
cat "$said_docs"
"$is_good"
