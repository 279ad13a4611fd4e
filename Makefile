# The verbs of the house. `make setup` makes the virtual environment that the others use.
VENV ?= .venv
BIN := $(VENV)/bin
PYTHON ?= python3

.PHONY: setup up test check format bench soak

# What runs the server, and, apart from it, what tests it.
$(BIN)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(BIN)/.ready: $(BIN)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	# The MCP client's older generation beside the newer one, for the test of interoperability.
	test -d $(VENV)/mcp-1 || $(BIN)/python -m pip install --quiet --disable-pip-version-check --target $(VENV)/mcp-1 'mcp==1.30.*'
	touch $@

setup: $(BIN)/.ready

up: $(BIN)/.installed
	$(BIN)/leasehub up

test: setup
	$(BIN)/python -m tests.both_databases

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/djade --check $$(git ls-files '*.html')
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python manage.py makemigrations --check --dry-run
	$(BIN)/python manage.py spectacular --validate --fail-on-warn | diff -u docs/openapi.yaml -

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	$(BIN)/python -m bench

soak: setup
	LEASEHUB_TEST_ROUNDS=full $(BIN)/python -m tests.both_databases
