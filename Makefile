# Two commands: `make sweep` sets up and runs the default sweep, `make test` sets up and runs every check.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
MOTO := .venv-moto
export MOTO_SERVER ?= $(CURDIR)/$(MOTO)/bin/moto_server

.PHONY: sweep test fast chaos lint bench clean

sweep: $(VENV)/.ready
	$(RUN) -m raysweep.tune

test: $(VENV)/.ready $(MOTO)/.ready lint
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
	rm -rf $(VENV) $(MOTO) dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

# Built anew when what it holds has changed, and only marked ready when all of it is there.
$(VENV)/.ready: pyproject.toml constraints.txt
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,bench]'
	touch $@

# An S3 to test with, in an environment of its own: boto3 needs python-dateutil < 3, constraints.txt has 4.
# Without it the tests of S3 are skipped, and say so.
$(MOTO)/.ready: Makefile
	rm -rf $(MOTO)
	-$(PYTHON) -m venv $(MOTO) && $(MOTO)/bin/python -m pip install --quiet --disable-pip-version-check \
		'moto[s3]==5.2.5' flask==3.1.3 flask-cors==6.0.5
	mkdir -p $(MOTO) && touch $@
