# Everything runs in .venv at the project's root; `make setup` makes it from constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.ready

export JAX_PLATFORMS ?= cpu
# Compiled programs are kept between runs: the second `make test` starts warm.
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.cache/jax
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0.5
# On some processors XLA calls every kept program an error, because it takes its own preferences (prefer-no-gather) for
# abilities of the processor. Python exceptions are shown as ever.
export TF_CPP_MIN_LOG_LEVEL ?= 3

.PHONY: dist check-dist docs-serve first-report setup demo test test-deploy test-all soak lint format bench bench-peers results docs lock clean help
help: ## what each command does
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## make .venv with pinned versions
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "sottovoce needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Setting up .venv (about a minute the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP) ## the main job on embedded data: a table and demo/report.html
	$(BIN)/sottovoce demo

# Nearly all of its time is compilation, so `make test` asks the compiler for little (the older way to write fusions, which
# compiles faster, and the same program never twice); `make test-all` runs as users do.
FAST := JAX_DISABLE_MOST_OPTIMIZATIONS=true JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 \
  XLA_FLAGS="--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
test: $(STAMP) ## every test that stands in a few minutes
	$(FAST) $(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow and not deploy"

DEPLOY := .venv/.deploy
$(DEPLOY): $(STAMP)
	@echo "Adding NVIDIA FLARE to .venv"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,deploy]'
	@touch $@

test-deploy: $(DEPLOY) ## a federation of five processes on this machine (under five minutes)
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow" src/sottovoce/deploy tests/deploy

test-all: $(DEPLOY) ## the long ones too
	$(BIN)/python -m pytest -n 2 --dist loadgroup

soak: $(DEPLOY) ## interrupts, kills (of a federation too), pairs, damaged files and full disks at full count
	SOAK=1 $(BIN)/python -m pytest tests/soak -q -s

lint: $(STAMP) ## ruff, the type checker, the import contract and the workflows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/check-jsonschema -q --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema -q --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/wish.yml

format: $(STAMP) ## rewrite in the project's style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP) ## speed, side by side, and the limits that were set; writes docs/benchmarks.md (5 minutes)
	$(BIN)/python -m benchmarks --write

PEERS := .venv-peers/.ready
$(PEERS): benchmarks/peers/requirements.txt
	@echo "Setting up .venv-peers with torch, Opacus, jax-privacy, JAXopt and MPI (about 1.5 GB)"
	@test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	@.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

bench-peers: $(STAMP) $(PEERS) ## the same work in other libraries; writes docs/benchmarks.md (10 minutes)
	$(BIN)/python -m benchmarks.peers --write

results: $(STAMP) ## write docs/results.md, its pages and pictures from docs/results/*/*.csv
	$(BIN)/python -m benchmarks.results

# Sphinx and its theme are installed once, and only for this: `make demo` does not pay for them.
SPHINX := .venv/.docs
$(SPHINX): $(STAMP)
	@echo "Setting up Sphinx in .venv"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

docs: $(SPHINX) ## build the site into site/, and run the examples of the documents and the commands of the tutorials
	$(BIN)/python -m sphinx -q -W --keep-going -b html -d .cache/sphinx docs site
	$(BIN)/python -m pytest -n 2 --dist loadgroup --doctest-glob='*.md' README.md docs

docs-serve: ## show site/ at http://localhost:8000: a search has excerpts there, which a file:// page cannot load
	@test -d site || $(MAKE) docs
	$(BIN)/python -m http.server --directory site --bind 127.0.0.1 8000

dist: $(STAMP) ## build the wheel into dist/
	rm -rf dist build
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

check-dist: dist ## ask twine whether the wheel can be published
	$(BIN)/twine check --strict dist/*

first-report: dist ## from the wheel in an empty environment to a report on an own CSV, per Python that is here
	$(BIN)/python benchmarks/first_report.py dist/*.whl

lock: $(SPHINX) $(DEPLOY) ## write constraints.txt from what is installed
	$(BIN)/python -m pip freeze --exclude-editable > constraints.txt

clean:
	rm -rf .venv .venv-peers .cache demo runs dist build site
