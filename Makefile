# The two commands of the README, and what they are made of.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
EXTRAS := .[dev,peers]
# Two processes; each begins with one half of the modules, whose fixtures are then made once.
SPREAD := -n 2 --dist worksteal
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

# Tests start hundreds of processes: each would compile the sources again where this is set.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow browser chromium firefox-esr npm lint format docs wheel bench clean

demo: .venv/installed
	@$(BIN)/vitrail demo

# Linters and types work beside the tests, and are shown after them; what fails in either fails.
test: .venv/installed-dev browser
	@mkdir -p build
	@$(MAKE) --no-print-directory lint >build/lint.log 2>&1 & lint=$$!; failed=0; \
	$(BIN)/python -m pytest $(SPREAD) || failed=1; \
	wait $$lint || failed=1; cat build/lint.log; exit $$failed

# What takes minutes: kill after kill, loads, whole sweeps of peers, the second browser.
test-slow: .venv/installed-dev browser firefox-esr
	$(BIN)/python -m pytest $(SPREAD) -m slow

# What the page tests open pages with, and get onnxruntime-web by; they are skipped where it can't be had.
browser: chromium npm
chromium firefox-esr npm:
	@command -v $@ >/dev/null \
	|| { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq --no-install-recommends $@; } >/dev/null 2>&1 \
	|| echo "$@ is not here and can't be installed: browser tests that need it will be skipped"

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: .venv/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site, in build/site; a warning or a dead link is an error.
docs: .venv/installed-dev
	$(BIN)/python docs/make_site.py
	$(BIN)/zensical build --strict

# Wheel and source archive, in dist/.
wheel: .venv/installed-dev
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

bench: .venv/installed-dev
	$(BIN)/python benchmarks/models.py --memory
	$(BIN)/python benchmarks/weights.py
	$(BIN)/python benchmarks/data.py
	$(BIN)/python benchmarks/check.py
	$(BIN)/python benchmarks/train.py
	$(BIN)/python benchmarks/pretext.py
	$(BIN)/python benchmarks/evaluate.py
	$(BIN)/python benchmarks/inspection.py
	$(BIN)/python benchmarks/predict.py
	$(BIN)/python benchmarks/compressed.py
	$(BIN)/python benchmarks/serve.py

clean:
	rm -rf .venv build dist

# Install with pip, which is silent for minutes, and say every 20 seconds that it goes on.
install = $(PIP) install --constraint constraints.txt --editable $(1) & pip=$$!; seconds=0; \
	while kill -0 $$pip 2>/dev/null; do \
	  sleep 1; seconds=$$((seconds + 1)); \
	  [ $$((seconds % 20)) -ne 0 ] || echo "… $$seconds seconds"; \
	done; wait $$pip

.venv/installed: pyproject.toml constraints.txt
	@echo "Installing vitrail into .venv, once; PyTorch is the largest part."
	@$(PYTHON) -m venv .venv
	@$(call install,.)
	@touch $@

.venv/installed-dev: .venv/installed
	@echo "Installing what development needs: linters, test tools, the libraries that we compare with."
	@$(call install,'$(EXTRAS)')
	@touch $@
