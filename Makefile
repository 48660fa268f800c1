# Two commands: `make sweep` sets up and runs the default sweep, `make test` sets up and runs every check.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python

.PHONY: sweep test fast chaos lint bench clean

sweep: $(VENV)/.ready
	$(RUN) -m raysweep.tune

test: $(VENV)/.ready lint
	$(RUN) -m pytest

fast: $(VENV)/.ready
	$(RUN) -m pytest -m "not slow and not ray"

chaos: $(VENV)/.ready
	RUNS=$(or $(RUNS),30) $(RUN) -m pytest -s -m chaos tests/ray

lint: $(VENV)/.ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

bench: $(VENV)/.ready
	$(RUN) benchmarks/loop.py
	$(RUN) benchmarks/train_overhead.py
	$(RUN) benchmarks/sweep_overhead.py
	$(RUN) benchmarks/ddp.py
	$(RUN) benchmarks/checkpoints.py
	$(RUN) benchmarks/elastic.py
	$(RUN) benchmarks/growing.py
	$(RUN) benchmarks/plan.py
	$(RUN) benchmarks/engine_scale.py
	$(RUN) benchmarks/journal_scale.py

clean:
	rm -rf $(VENV) dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

# Built anew when what it holds has changed, and only marked ready when all of it is there.
$(VENV)/.ready: pyproject.toml constraints.txt
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,bench]'
	touch $@
