# The commands of a contributor; CONTRIBUTING.md has what each checks and how long it takes.
PYTHON ?= .venv/bin/python

.PHONY: fast test lint simulate benchmark

fast:      ## decisions and formulas; under a minute on a quiet machine
	$(PYTHON) -m pytest tests/core/planning tests/core/ledger tests/core/model tests/core/averaging tests/config tests/numerics tests/test_tidy.py

test:      ## everything, as .ci/run does
	bash tests/run.sh

lint:      ## style, types, direction of imports
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	.venv/bin/lint-imports

simulate:  ## two seeds of a simulated swarm with loss and churn
	$(PYTHON) -m adloco_p2p simulate --peers 8 --rounds 3 --seeds 1-2 --loss 0.05

benchmark: ## averaging on this machine beside hivemind's
	$(PYTHON) -m benchmarks.averaging_loopback
