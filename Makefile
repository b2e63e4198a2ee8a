# Everything runs in .venv, which the first target that needs it creates.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Enough for the demo: secede and what it runs on. Then all that tests need.
LIBRARY := $(VENV)/.library
INSTALLED := $(VENV)/.installed
# Each file that is fetched must have a hash in constraints*.txt, and what builds secede is among them.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation
PINNED := $(PIP) --require-hashes

# Processes that run the tests. A file's tests stay in one, where they share fixtures.
WORKERS ?= 2
TESTS = $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
TIMINGS ?= 10  # of each fault

.DEFAULT_GOAL := help
.PHONY: help demo test test-all check lint types audit constraints kills faults bench browser clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

demo: $(LIBRARY) ## Set up, then train, erase and compare with retraining on embedded data
	$(BIN)/secede demo

test: $(INSTALLED) ## Set up, then run the tests but for the slow ones: some minutes
	$(TESTS) -m "not slow and not browser and not nvflare and not kills and not faults and not gpu"

test-all: $(INSTALLED) browser ## Every test that needs no GPU: a browser, simulators and real deployments too
	$(TESTS) -m "not kills and not faults and not gpu"

check: lint types audit test-all ## What must pass before a change lands, and all that CI runs

lint: $(INSTALLED) ## ruff: style and formatting; import-linter: what may import what
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(INSTALLED) ## mypy --strict
	$(BIN)/mypy

audit: $(INSTALLED) ## pip-audit: known vulnerabilities of what is pinned; a line where it has no network
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python .ci/audit.py

constraints: $(INSTALLED) ## Pin all packages anew, with hashes; OPTIONS=--upgrade for the newest versions
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python .ci/constraints.py $(OPTIONS)

kills: $(INSTALLED) ## Kill an erasure at every single write, and 200 times at random: some minutes
	$(BIN)/pytest -m kills

faults: $(INSTALLED) ## Kill every process of a Flower deployment at every stage, ten times each: hours
	$(BIN)/pytest tests/flower/test_faults.py -m faults --timings $(TIMINGS)

bench: $(INSTALLED) ## Time the simulator on this machine's cores, in modest sizes: some minutes
	$(BIN)/python -m benchmarks.round --device cpu --images 2000 --repeats 3
	$(BIN)/python -m benchmarks.erase --device cpu --images 1000 --repeats 3
	$(BIN)/python -m benchmarks.scaling --device cpu --images 2000 --repeats 2
	$(BIN)/python -m benchmarks.matmul_share --device cpu --images 2000 --repeats 3
	$(BIN)/python -m benchmarks.overhead --device cpu --repeats 20
	$(BIN)/python -m benchmarks.federations --device cpu --repeats 3

# The page is tested in a real browser: Debian's Chromium, unless one is there already.
browser:
	@command -v chromium chromium-browser google-chrome >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing Chromium for the browser tests"; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; \
	  else echo "no Chromium here: the browser tests will be skipped"; fi; }

$(LIBRARY): pyproject.toml constraints.txt constraints-torch.txt constraints-torch-cpu.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "secede needs Python 3.11 or newer")'
	@echo "setting up $(VENV): secede and what it runs on, mostly PyTorch (1.3 GB with its CPU build); some minutes"
	$(PYTHON) -m venv $(VENV)
	$(PINNED) -r constraints.txt
	$(PINNED) -r constraints-torch-cpu.txt 2>/dev/null || $(PINNED) -r constraints-torch.txt
	$(PIP) -e .
	$(BIN)/pip check --disable-pip-version-check
	@touch $@

$(INSTALLED): pyproject.toml constraints-dev.txt | $(LIBRARY)
	@echo "adding what the tests need to $(VENV), Flower and NVFlare among it (0.8 GB more); some minutes"
	$(PINNED) -r constraints-dev.txt
	$(BIN)/pip check --disable-pip-version-check
	@touch $@

clean: ## Remove the environment and all caches (records in runs/ stay)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
