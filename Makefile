# headway: the commands of everyday work. `make help` lists them.
# Needs GNU make and a python3 (3.10 or newer) with the venv module; everything else goes in .venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RUNS   := $(VENV)/.runs
STAMP  := $(VENV)/.installed
TRACKERS := .venv-trackers
FRAMEWORKS := .venv-frameworks
TORCH  ?= 2.6.0
VERSIONS ?= 2.6.0 2.7.0 2.10.0 2.13.0 2.14.1 2.15.0
DOCS   := .venv-docs
JOBS   ?= 2
ARGS   ?=

# What is linted and formatted: the folders of ours that exist.
FOLDERS := $(wildcard src tests examples benchmarks corpus docs)

# Each pytest worker gets one core; numerical threads on top of that only fight over it.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS)

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo bytecode test test-slow test-nightly test-long test-gpu test-browser test-public test-trackers test-stores test-frameworks test-dist test-versions test-versions-matrix examples docs lint format bench new-check news dist api-snapshot clean distclean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## create .venv with headway and its tools

# torch goes first and pinned, so that nothing else chooses a torch of its own.
$(RUNS): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("headway needs Python 3.10 or newer, and $(PYTHON) is " + sys.version.split()[0] + "; try make PYTHON=python3.11" if sys.version_info < (3, 10) else 0)'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@# A pip older than 21.3 cannot install this project in editable form.
	@$(BIN)/python -c 'import pip; assert tuple(map(int, pip.__version__.split(".")[:2])) >= (21, 3)' 2>/dev/null \
		|| $(BIN)/python -m pip install --upgrade pip \
		|| echo "pip could not be upgraded; going on with the one that is there"
	$(BIN)/python -m pip install torch==2.13.0 -c constraints.txt
	$(BIN)/python -m pip install -e . -c constraints.txt
	@touch $@

# The tools of development, which take longer to come than headway itself.
$(STAMP): $(RUNS)
	$(BIN)/python -m pip install -e '.[dev]' -c constraints.txt
	@touch $@

demo: $(RUNS) ## watch a run fail and be saved
	$(BIN)/headway demo $(ARGS)
	@command -v headway >/dev/null || echo '(`. $(BIN)/activate` puts headway on your path)'

test: lint bytecode ## lint, types, import contracts, then the quick tests
	$(PYTEST) -m 'not slow and not nightly and not gpu and not browser and not trackers and not dist' $(ARGS)

# The tests start hundreds of processes; where PYTHONDONTWRITEBYTECODE is set, each would compile
# headway for itself.
bytecode: $(STAMP)
	@$(BIN)/python -m compileall -q src

# pytest answers 5 when it has collected nothing: no slow tests is no failure.
test-slow: $(STAMP) bytecode ## the tests that take their time
	$(PYTEST) -m 'slow and not long and not nightly and not gpu and not browser and not trackers' $(ARGS) || { code=$$?; [ $$code -eq 5 ] && echo 'no slow tests'; }

# Not in the build server's run: `make test` and `make test-slow` run a part of each of these.
test-nightly: $(STAMP) ## self-checks of the test sets, large grids in full, long runs at a quarter
	$(PYTEST) -m '(nightly or long) and not gpu and not browser and not trackers' $(ARGS)

# Not in the build server's run: the longest of them, to the length that is claimed.
test-long: $(STAMP) ## 100,000 steps, a hundred kills, schedules of faults at length
	HEADWAY_LONG=1 $(PYTEST) -m long $(ARGS)

test-gpu: $(STAMP) ## the tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu $(ARGS)

test-browser: $(STAMP) ## the report and the live page in a real browser; installs what that needs
	@tests/browser/install.sh
	$(BIN)/python -m pytest -m browser tests/browser $(ARGS)

test-trackers: $(TRACKERS)/.installed ## the tests that need TensorBoard, W&B, MLflow, trackio or matplotlib
	OMP_NUM_THREADS=1 $(TRACKERS)/bin/python -m pytest -m trackers tests/output $(ARGS)

test-stores: $(TRACKERS)/.installed ## run directories on an S3 server: upload, resume, kills, other hosts
	OMP_NUM_THREADS=1 $(TRACKERS)/bin/python -m pytest -n $(JOBS) tests/rundir/test_remote_run.py tests/ranks/test_stores.py -k s3 $(ARGS)

# Not in the build server's run: a download of gigabytes, most of it for Ultralytics and fastai.
test-frameworks: $(FRAMEWORKS)/.installed ## trainings of TRL, sentence-transformers, Keras, fastai, Ultralytics under headway
	OMP_NUM_THREADS=1 $(FRAMEWORKS)/bin/python -m pytest tests/integrations/test_other_frameworks.py tests/integrations/test_ray.py $(ARGS)
	OMP_NUM_THREADS=1 $(FRAMEWORKS)/bin/python -m pytest tests/recovery/test_resume.py -k torchdata $(ARGS)

# Not in the build server's run: the scripts belong to others and are not stored here.
test-public: $(STAMP) ## check and run over public scripts: make test-public PUBLIC=folder-with-clones
	$(BIN)/python benchmarks/public_scripts.py $(PUBLIC) $(ARGS)

# What is to be installed is what is tested: the wheel, in environments of its own.
test-dist: dist ## the wheel in empty environments, with and without torch
	$(BIN)/python -m pytest -m dist tests/release $(ARGS)

# Not in the build server's run: each version of torch is a download of gigabytes, or 0.2 GB where
# pip finds a wheel for the CPU.
test-versions: ## the core tests under another torch: make test-versions TORCH=2.8.0 PYTHON=python3.12
	PYTHON='$(PYTHON)' tests/release/under_torch $(TORCH) $(ARGS)

# One environment after the other; each stays, so that a second run is quick.
test-versions-matrix: ## the private parts of torch that headway uses, under each of VERSIONS="2.6.0 2.15.0"
	@failed=; for version in $(VERSIONS); do \
		echo "== torch $$version"; \
		PYTHON='$(PYTHON)' tests/release/under_torch $$version --fence $(ARGS) || failed="$$failed $$version"; \
	done; \
	[ -z "$$failed" ] || { echo "failed under torch$$failed"; exit 1; }

# Each example is a script that stops at the first result that does not match; two run at a time.
examples: $(TRACKERS)/.installed ## run the five examples and verify their results
	@echo $(sort $(wildcard examples/*/run_example.py)) | OMP_NUM_THREADS=1 xargs -n 1 -P $(JOBS) sh -c \
		'text=$$($(TRACKERS)/bin/python "$$0" 2>&1); code=$$?; printf "\n== %s\n%s\n" "$$0" "$$text"; exit $$code'

# On top of .venv, so that torch is there once. Apart from it, because Lightning and transformers
# log to whatever tracker they find installed, and their tests are to see what most people have.
$(TRACKERS)/.installed: $(STAMP)
	$(PYTHON) -m venv --clear $(TRACKERS)
	@below=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	above=$$($(TRACKERS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	echo "import site; site.addsitedir('$$below')" > "$$above/_venv_below.pth"
	$(TRACKERS)/bin/python -m pip install -e '.[trackers,stores,plot]' -c constraints.txt
	@touch $@

$(FRAMEWORKS)/.installed: $(STAMP)
	$(PYTHON) -m venv --clear $(FRAMEWORKS)
	@below=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	above=$$($(FRAMEWORKS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	echo "import site; site.addsitedir('$$below')" > "$$above/_venv_below.pth"
	$(FRAMEWORKS)/bin/python -m pip install trl datasets sentence-transformers keras fastai ultralytics torchdata 'ray[train]' -c constraints.txt
	@touch $@

# Strict: a broken link, a missing anchor or a page without a place in the navigation ends it.
docs: $(DOCS)/.installed ## the documentation site, into build/site
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict
	$(DOCS)/bin/python docs/site/search.py
	@echo "open build/site/index.html"

# Apart from .venv and without torch: the pages are made from docstrings, which needs none.
$(DOCS)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet -e '.[docs]' -c constraints.txt
	@touch $@

lint: $(STAMP) ## ruff, mypy and import-linter; changes nothing
	$(BIN)/ruff check $(FOLDERS)
	$(BIN)/ruff format --check $(FOLDERS)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(STAMP) ## repair what ruff can repair
	$(BIN)/ruff check --fix $(FOLDERS)
	$(BIN)/ruff format $(FOLDERS)

new-check: $(STAMP) ## write the two files of a check: make new-check CODE=HD150 NAME=repeated-loss
	@$(BIN)/python tests/support/new_check.py '$(CODE)' '$(NAME)'

bench: $(STAMP) ## run every benchmark; each prints its claim as a ratio
	@set -e; for script in $(sort $(filter-out benchmarks/_%,$(wildcard benchmarks/*.py))); do \
		echo "== $$script"; $(BIN)/python $$script $(ARGS); \
	done

# The wheel is made out of the sdist, so that the sdist is known to be whole.
dist: $(STAMP) ## build the wheel and the sdist in dist/, and check them
	@$(BIN)/python -m pip install --quiet build hatchling twine -c constraints.txt
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

api-snapshot: $(STAMP) ## write down the public names, options and codes as they are now
	PYTHONPATH=src:tests $(BIN)/python tests/support/public_surface.py
	@git diff --stat -- tests/release

news: $(STAMP) ## show the news of the next release as it would be printed
	$(BIN)/towncrier build --draft

clean: ## remove build results and caches
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis htmlcov .coverage
	find $(FOLDERS) -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## clean, and remove .venv and the others beside it too
	rm -rf $(VENV) $(VENV)-*
