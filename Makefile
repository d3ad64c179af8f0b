# Everything runs in .venv, which each target makes for itself; a second run costs nothing.
#
#   make demo         see tidelog at work
#   make test         the checks and tests for each change: at most 8 minutes on two idle cores
#   make test-all     the tests that `make test` leaves out: simulation, crash points, Spark, ...
#   make test-newest  both, on the newest version of each dependency that pyproject.toml allows
#   make test-oldest  both, on the oldest
#   make lock         renew the lock, locks/*.txt, to the newest versions
#   make docs         build the documentation site into site/ (DOCS_ARGS="..." for mkdocs build)
#   make check        the static part only
#   make bench        measure (BENCH_ARGS="..." for all scripts)
#   make chaos        the long form of tests/chaos (CHAOS_ARGS="--engine spark --kills 20")
#   make cluster-demo the demo on a Spark cluster made for it, its processes killed in turn
#   make fuzz         the long form of tests/fuzz (FUZZ_ARGS="--seed 7 --cases 20000")
#   make schedules    the long form of tests/schedules (SCHEDULES_ARGS="--first 100 --seeds 500")
#   make messy        the long form of tests/messy (MESSY_ARGS="--seed 1000 --cases 5000 --engine local")
#   make services     start Kafka, a schema registry, PostgreSQL, SeaweedFS and Azurite
#   make services-stop      stop them (their data stays in services-data/)
#   make services-status    try them
#   make clean        remove what the others made, except .venv (make distclean removes that too)
#                     and services-data, which services that run need
#
# PYTEST_ARGS="tests/store -x" runs some tests. VENV=folder keeps the environment elsewhere.

PYTHON ?= python3
VENV ?= .venv
# lock: exact versions and hashes, from locks/. newest, oldest: resolved from pyproject.toml.
VERSIONS ?= lock
PYTEST_ARGS ?=
# Tests wait for servers and killed processes, so more workers than cores help. A file stays with
# one worker, because its tests share servers and Spark sessions.
PYTEST_WORKERS ?= -n 3 --dist loadfile --no-loadscope-reorder
BENCH_ARGS ?=
CHAOS_ARGS ?=
FUZZ_ARGS ?=
SCHEDULES_ARGS ?=
MESSY_ARGS ?=
DEMO_ARGS ?=
DOCS_ARGS ?=
CLUSTER_ARGS ?=
SERVICES_ARGS ?=

BENCHES := $(filter-out bench/figures.py bench/ingest_plan.py bench/ingest_sides.py bench/keyed_records.py bench/keyed_slatedb.py bench/latency_picture.py bench/made_logs.py,$(wildcard bench/*.py))
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
UV := VIRTUAL_ENV=$(VENV) $(BIN)/uv pip
DEV := $(VENV)/.installed-dev
# The environment of the tests includes the demo's.
DEMO := $(if $(wildcard $(DEV)),$(DEV),$(VENV)/.installed-demo)
# The extras that users install; the other dependencies of `dev` are tools of the tests.
SHIPPED := avro aws demo fast kafka postgres server spark

.PHONY: demo test test-all test-newest test-oldest lock docs check bench chaos cluster-demo fuzz messy schedules services \
	services-stop services-status clean distclean
.DELETE_ON_ERROR:

demo: $(DEMO)
	@$(BIN)/tidelog demo $(DEMO_ARGS)

test: $(DEV)
	@$(BIN)/python -m pytest --part=test $(PYTEST_WORKERS) $(PYTEST_ARGS)

test-all: $(DEV)
	@$(BIN)/python -m pytest --part=rest $(PYTEST_WORKERS) $(PYTEST_ARGS)

test-newest test-oldest: test-%:
	@$(MAKE) VENV=.venv-$* VERSIONS=$* test
	@$(MAKE) VENV=.venv-$* VERSIONS=$* test-all

# Renewed in full: an unchanged lock would pin the versions that the new one is to replace.
lock: $(BIN)/uv
	@rm -f locks/*.txt
	@$(LOCK) locks/tools.in -o locks/tools.txt
	@$(LOCK) pyproject.toml locks/tools.in --extra dev -o locks/dev.txt
	@$(LOCK) pyproject.toml locks/tools.in --extra demo -c locks/dev.txt -o locks/demo.txt
LOCK := $(UV) compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header

# The variable silences an advertisement of another program.
docs: $(DEV)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict $(DOCS_ARGS)
	@echo "open site/index.html"

check: $(DEV)
	@$(BIN)/python -m pytest -n 2 -q --no-header tests/checks

bench: $(DEV)
	@set -e; for script in $(BENCHES); do \
	  echo "== $$script"; PYTHONPATH=tests:. $(BIN)/python $$script $(BENCH_ARGS); done

fuzz: $(DEV)
	@PYTHONPATH=tests $(BIN)/python -m fuzz $(FUZZ_ARGS)

schedules: $(DEV)
	@PYTHONPATH=tests:. $(BIN)/python -m schedules $(SCHEDULES_ARGS)

messy: $(DEV)
	@PYTHONPATH=tests:. $(BIN)/python -m messy $(MESSY_ARGS)

chaos: $(DEV)
	@PYTHONPATH=tests $(BIN)/python -m chaos $(CHAOS_ARGS)

services: $(DEV)
	@PYTHONPATH=tests $(BIN)/python -m kit.services start $(SERVICES_ARGS)

services-stop services-status: services-%: $(DEV)
	@PYTHONPATH=tests $(BIN)/python -m kit.services $* $(SERVICES_ARGS)

cluster-demo: $(DEV)
	@PYTHONPATH=tests $(BIN)/python -m cluster $(CLUSTER_ARGS)

clean:
	rm -rf build dist site demo-data .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests sim bench -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) .venv-newest .venv-oldest src/*.egg-info

$(VENV)/.installed-%: pyproject.toml locks/dev.txt locks/demo.txt | $(BIN)/uv
	@echo "installing tidelog and the $* dependencies into $(VENV), versions: $(VERSIONS)"
	@$(INSTALL_$(VERSIONS))
	@$(UV) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@
INSTALL_lock = $(UV) install --quiet --require-hashes -r locks/$*.txt
INSTALL_newest = $(UV) install --quiet --upgrade -r pyproject.toml -r locks/tools.in --extra $*
# Tools of the tests stay at their newest: only the versions that users may have are old.
INSTALL_oldest = $(UV) compile --quiet --resolution lowest-direct pyproject.toml \
	  $(SHIPPED:%=--extra %) --no-header --no-annotate -o $(VENV)/oldest.txt && \
	  $(UV) install --quiet -r pyproject.toml -r locks/tools.in --extra $* -c $(VENV)/oldest.txt

$(BIN)/uv: locks/tools.txt | $(BIN)/python
	@$(PIP) install --require-hashes -r locks/tools.txt
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else \
	  "tidelog needs Python 3.11 or newer; name one: make PYTHON=python3.12")'
	@$(PYTHON) -m venv $(VENV)
