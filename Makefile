# The commands of the README. Each sets up what it needs and says so.
#
#   make image   build the layers that are not up to date      TARGET=gfx1151 CHANNEL=debian ENGINE=docker OVERRIDE=folder
#   make demo    image (RCCL with what training calls), then a real fine-tune in the container
#   make test    everything that can be shown on this machine
#   make lint    ruff and mypy

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STRIX := $(BIN)/strix-finetune
OPTIONS = $(if $(TARGET),--target $(TARGET)) $(if $(CHANNEL),--channel $(CHANNEL)) $(if $(ENGINE),--engine $(ENGINE)) \
          $(if $(OVERRIDE),--override $(OVERRIDE))

export PYTHON

.PHONY: image demo test test-unit test-engine test-train test-e2e lint bench clean

image: $(VENV)/installed
	@scripts/host.sh engine
	$(STRIX) build $(OPTIONS)

demo: $(VENV)/installed
	@scripts/host.sh engine
	$(STRIX) demo $(OPTIONS)

# tests build what the demo builds: RCCL with what a training run calls (docs/rccl.md)
test test-train: export OVERRIDE ?= images/profiles/training

# services that the tests start are stopped again, whatever the outcome
test: export STRIX_STARTED := $(CURDIR)/build/started
test: $(VENV)/developer
	@scripts/host.sh test
	@$(MAKE) --no-print-directory lint test-unit test-engine test-train test-e2e; code=$$?; \
	  scripts/host.sh stop "$$STRIX_STARTED"; exit $$code

test-unit: $(VENV)/developer
	$(BIN)/pytest tests/unit

test-engine: $(VENV)/developer
	$(BIN)/pytest tests/engine

# inside the image: the torch, the libraries and the Python that people get. LONG=1: what takes many minutes instead
test-train: $(VENV)/developer
	$(BIN)/python tests/train/inside.py $(if $(OVERRIDE),,--override images/profiles/training) $(OPTIONS) \
	  $(if $(LONG),-- -m long)

test-e2e: $(VENV)/developer
	$(BIN)/pytest tests/e2e

lint: $(VENV)/developer
	$(BIN)/ruff check src tests bench
	$(BIN)/ruff format --check src tests bench
	$(BIN)/mypy

bench: $(VENV)/developer
	$(BIN)/python -m bench

$(VENV)/installed: pyproject.toml
	@scripts/host.sh python
	@echo "setting up $(VENV)" >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/developer: $(VENV)/installed tests/requirements.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement tests/requirements.txt
	@touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
