# `make demo` and `make test` need Python 3.11 to 3.13, pip and make; nothing else. Both are quick the second time.
#
# On Linux without an NVIDIA GPU, torch comes from this index if it answers: the CPU build satisfies the same lock and is
# several GB smaller. PIP_INDEX_URL and PIP_EXTRA_INDEX_URL, if set, are used instead.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu

VENV := .venv
BIN := $(VENV)/bin
UV ?= uv

# The first of these that is new enough, runs, and can make a virtual environment. Looked for only when needed.
VERSIONS := (3, 11) <= sys.version_info[:2] <= (3, 13)
CHECK := import sys, venv, ensurepip; sys.exit(not $(VERSIONS))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c "$(CHECK)" >/dev/null 2>&1 && echo "$$p" && break; done)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# Otherwise all test modules, and attendo for each command that a test starts, are compiled again.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/python -m pip install --quiet

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo test test-full soak lint format docs site lock release coverage mutants figures gpu-figures clean

help: ## show these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-11s %s\n", $$1, $$2 }' Makefile

venv: $(VENV)/dev.stamp ## make .venv with everything that development needs

demo: $(VENV)/run.stamp ## train a translator on the embedded corpus and show what it does
	$(BIN)/attendo demo
	@echo "(for the command by its name: . $(BIN)/activate)"

test: lint ## what CI runs: lint, types, layers, tests (at most 10 CPU-minutes)
	$(BIN)/python -m pytest

test-full: lint ## the same with the large counts and lm-eval (at most 60 CPU-minutes)
	$(BIN)/python -m pip install --quiet --constraint requirements-dev.lock "lm-eval[api,hf]==0.4.13"
	$(BIN)/python -m pytest -m "not soak"

soak: venv ## hours: ten thousand generated requests per route
	$(BIN)/python -m pytest -m soak

lint: venv ## style, types, layers, the line budget, the wording, and with Node.js the scripts of the pages
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/python tools/count_lines.py
	$(BIN)/python tools/check_style.py
	@sh tools/web/check.sh

format: venv ## put the code into the project's style
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

docs: venv ## write what is made from code and results: commands, settings, types of the pages, pictures, benchmarks
	$(BIN)/python tools/command_docs.py
	$(BIN)/python tools/settings_docs.py
	$(BIN)/python tools/page_types.py
	$(BIN)/python tools/design_pictures.py
	$(BIN)/python benchmarks/pages.py

site: venv ## build the site, strictly, into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Torch from PyPI pins its own NVIDIA packages and the CPU build has none, so the locks leave them out: with
# `pip install -r` both builds come out right.
lock: ## renew both locks (requires uv)
	UV_CUSTOM_COMPILE_COMMAND="make lock" $(UV) pip compile pyproject.toml --extra dev --quiet --upgrade \
		--universal --python-version 3.11 --fork-strategy fewest --annotation-style line \
		| grep -vE '^(nvidia-|cuda-|triton=)' > requirements-dev.lock
	UV_CUSTOM_COMPILE_COMMAND="make lock" $(UV) pip compile pyproject.toml --constraint requirements-dev.lock \
		--quiet --universal --python-version 3.11 --fork-strategy fewest --annotation-style line \
		| grep -vE '^(nvidia-|cuda-|triton=)' \
		| sed 's/, -c requirements-dev.lock//; s/-c requirements-dev.lock, //' > requirements.lock

release: venv ## wheel, sdist, bill of materials and checksums in dist/, tried in empty environments
	$(BIN)/nox

clean: ## remove .venv and caches
	rm -rf $(VENV) .nox .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist mutants tools/web/node_modules

figures: venv ## run the claimed figures that fit in 30 CPU-minutes (FIGURES="--corpora DIR --run DIR --peers DIR")
	$(BIN)/python benchmarks/figures.py $(FIGURES)

gpu-figures: venv ## all figures of one NVIDIA GPU, in 25 minutes (FIGURES="--corpora DIR"); goes on where it was stopped
	$(BIN)/python benchmarks/gpu.py $(FIGURES)

# By the tests of these packages, not the whole suite: a line that only a command far above comes past does not count.
# Coverage and mutants are measured with all cases and examples of the tests that `make test` samples.
COVERED := 'nn/*' 'model*.py' 'decoding/*' 'data/*'
COVERING := $(addprefix src/attendo/,nn models.py model_config.py decoding data) $(addprefix tests/,nn test_models.py \
	test_model_config.py decoding data properties inference/test_translator.py inference/test_generator.py course)
coverage: venv ## the share of lines of nn, the models, decoding and data that their own tests come past, at least 95 %
	$(BIN)/coverage erase
	ATTENDO_LARGE_COUNTS=1 $(BIN)/coverage run -m pytest -q $(COVERING)
	$(BIN)/coverage combine --quiet
	@for part in $(COVERED); do \
		$(BIN)/coverage report --include="src/attendo/$$part" --show-missing --skip-covered --fail-under=95 || short=1; \
	done; [ -z "$$short" ]

mutants: venv ## which small wrong changes of nn its own tests let live (MUTANTS="attendo.nn.layers*": of one module)
	ATTENDO_LARGE_COUNTS=1 $(BIN)/mutmut run $(MUTANTS)
	$(BIN)/mutmut results

# An existing folder is used if it works, and nothing in it is removed. The file `making` marks an environment that make
# itself began; after an interruption it is made again in place.
$(VENV)/python.stamp:
	@if [ -n "$$(ls -A $(VENV) 2>/dev/null)" ] && [ ! -e $(VENV)/making ]; then \
		$(BIN)/python -c "import sys, pip; sys.exit(sys.prefix == sys.base_prefix or not $(VERSIONS))" 2>/dev/null || { \
		echo "error: $(VENV) is not a virtual environment of Python 3.11 to 3.13 with pip;" \
			"move it away, or run: make VENV=another-folder" >&2; exit 2; }; \
	else \
		"$(PYTHON)" -c "$(CHECK)" || { \
		echo "error: no Python 3.11 to 3.13 with venv and pip; install one, or run: make PYTHON=..." >&2; exit 2; }; \
		mkdir -p $(VENV) && touch $(VENV)/making && "$(PYTHON)" -m venv $(VENV) && rm $(VENV)/making; \
	fi
	@touch $@

$(VENV)/run.stamp: $(VENV)/python.stamp requirements.lock requirements-dev.lock pyproject.toml
	@echo "installing requirements.lock (torch is large: this takes minutes, once)"
	@index=$$($(BIN)/python tools/torch_index.py $(TORCH_CPU_INDEX)) && \
		$(INSTALL) $${index:+--extra-index-url "$$index"} -r requirements.lock
	$(INSTALL) --constraint requirements-dev.lock hatchling
	$(INSTALL) --no-build-isolation --no-deps --editable .
	@touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp requirements-dev.lock
	$(INSTALL) -r requirements-dev.lock
	@touch $@
