PYTHON ?= .venv/bin/python
BUILD ?= build/dev

.PHONY: native
native: ## build the native module in place, for development
	cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE=$(PYTHON) > $(BUILD).log || (cat $(BUILD).log; false)
	cmake --build $(BUILD)
	cmake --install $(BUILD) --prefix src > $(BUILD).log
