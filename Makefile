# One command each: set-up comes first and is skipped in about a second when it is done (scripts/setup.sh).
# ARGS goes to the program behind a target: make test ARGS="-k window", make run ARGS="workload.seed=2"
.PHONY: setup run smoke reproduce test lint figures notebooks
MAKEFLAGS += --no-print-directory

setup:
	@bash scripts/setup.sh

run: setup
	.venv/bin/python -m experiments.run +exp=cliff_sweep $(ARGS)

smoke: setup
	.venv/bin/python -m experiments.run +exp=smoke $(ARGS)

reproduce: setup
	.venv/bin/python -m experiments.reproduce $(ARGS)

test: setup
	.venv/bin/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder $(ARGS)

lint: setup
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports

figures: setup
	.venv/bin/python -m figures --data data/golden --out build --check $(ARGS)
	.venv/bin/python -m figures claims --check

notebooks: setup
	.venv/bin/python scripts/run_notebooks.py --out build/notebooks $(ARGS)
