# Everything runs in .venv, which each target sets up for itself; the second time costs nothing.
#
#   make demo     see tidelog at work
#   make test     all checks and tests (PYTEST_ARGS="tests/store -x" for some)
#   make check    the static part only
#   make bench    measure (BENCH_ARGS are handed on)
#   make chaos    the long form of tests/chaos (CHAOS_ARGS="--engine spark --kills 20")
#   make cluster-demo   the demo on a Spark cluster made for it, its processes killed in turn
#   make fuzz     the long form of tests/fuzz (FUZZ_ARGS="--seed 7 --cases 20000")
#   make schedules  the long form of tests/schedules (SCHEDULES_ARGS="--first 100 --seeds 500")
#   make messy    the long form of tests/messy (MESSY_ARGS="--seed 1000 --cases 5000 --engine local")
#   make clean    remove what the others made, except .venv (make distclean removes that too)

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
# Much of the time is waiting for servers and for killed processes: two workers more than two cores
# can use. A file stays with one worker; in the order of names those that take long come first.
PYTEST_WORKERS ?= -n 4 --dist loadfile --no-loadscope-reorder
BENCH_ARGS ?=
CHAOS_ARGS ?=
FUZZ_ARGS ?=
SCHEDULES_ARGS ?=
MESSY_ARGS ?=
DEMO_ARGS ?=
CLUSTER_ARGS ?=

BENCHES := $(filter-out bench/figures.py bench/ingest_plan.py bench/ingest_sides.py bench/keyed_records.py bench/keyed_slatedb.py bench/latency_picture.py bench/made_logs.py,$(wildcard bench/*.py))
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
DEV := $(VENV)/.installed-dev
# What the tests need includes what the demo needs.
DEMO := $(if $(wildcard $(DEV)),$(DEV),$(VENV)/.installed-demo)

.PHONY: demo test check bench chaos cluster-demo fuzz messy schedules clean distclean
.DELETE_ON_ERROR:

demo: $(DEMO)
	@$(BIN)/tidelog demo $(DEMO_ARGS)

test: $(DEV)
	@$(BIN)/python -m pytest $(PYTEST_WORKERS) $(PYTEST_ARGS)

check: $(DEV)
	@$(BIN)/python -m pytest -n 2 -q --no-header tests/checks

bench: $(DEV)
	@set -e; for script in $(BENCHES); do \
	  echo "== $$script"; PYTHONPATH=tests $(BIN)/python $$script $(BENCH_ARGS); done

fuzz: $(DEV)
	@PYTHONPATH=tests $(BIN)/python -m fuzz $(FUZZ_ARGS)

schedules: $(DEV)
	@PYTHONPATH=tests:. $(BIN)/python -m schedules $(SCHEDULES_ARGS)

messy: $(DEV)
	@PYTHONPATH=tests:. $(BIN)/python -m messy $(MESSY_ARGS)

chaos: $(DEV)
	@PYTHONPATH=tests $(BIN)/python -m chaos $(CHAOS_ARGS)

cluster-demo: $(DEV)
	@PYTHONPATH=tests $(BIN)/python -m cluster $(CLUSTER_ARGS)

clean:
	rm -rf build dist demo-data .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests sim bench -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) src/*.egg-info

$(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	@echo "installing tidelog and what its $* needs into $(VENV); a few minutes the first time"
	@$(PIP) install --editable ".[$*]"
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else \
	  "tidelog needs Python 3.11 or newer; name one: make PYTHON=python3.12")'
	@$(PYTHON) -m venv $(VENV)
