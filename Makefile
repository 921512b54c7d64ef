VENV := .venv
PYTHON ?= $(VENV)/bin/python
BUILD ?= build/dev
INSTALLED := $(VENV)/.installed

.PHONY: demo test lint sanitize selfcheck peers native clean

demo: $(INSTALLED) ## set up, fetch a small model, measure what the switches are worth, write out/demo/report.html
	$(VENV)/bin/fuseboard ablate smollm2-135m --design quick --out out/demo

test: $(VENV)/.dev ## all tests
	$(PYTHON) -m pytest

lint: $(VENV)/.dev ## style and types
	$(PYTHON) -m ruff check src tests benchmarks
	$(PYTHON) -m ruff format --check src tests benchmarks
	$(PYTHON) -m mypy

sanitize: $(VENV)/.dev ## native tests under the thread, address and undefined-behaviour sanitizers
	PYTHON=$(PYTHON) tests/native/sanitize.sh thread -k "team or program or fused"
	PYTHON=$(PYTHON) tests/native/sanitize.sh address,undefined

selfcheck: $(INSTALLED) ## check the laboratory on a real engine; wants a quiet machine
	$(VENV)/bin/python -m fuseboard.measure.selfcheck --out benchmarks/selfcheck

peers: $(INSTALLED) ## side by side with other engines, each built in an environment of its own (1 to 2 hours)
	$(VENV)/bin/python -m benchmarks.peers

native: ## build the native module in place, for development
	@mkdir -p $(BUILD)
	cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE=$(PYTHON) > $(BUILD).log || (cat $(BUILD).log; false)
	cmake --build $(BUILD)
	cmake --install $(BUILD) --prefix src > $(BUILD).log

clean:
	rm -rf $(VENV) build out

SOURCES := pyproject.toml CMakeLists.txt $(wildcard csrc/*.* csrc/*/*.*)

$(VENV)/bin/python:
	python3 -c 'import sys; sys.exit("Fuseboard needs Python 3.11 or newer.") if sys.version_info < (3, 11) else None'
	python3 -m venv $(VENV)

# The package is installed in editable mode: Python changes need no new installation, native ones rebuild here.
$(INSTALLED): $(VENV)/bin/python $(SOURCES)
	$(VENV)/bin/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.dev: $(INSTALLED)
	$(VENV)/bin/python -m pip install --quiet --editable '.[dev,reference]'
	touch $@
