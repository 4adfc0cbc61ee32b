# `make demo` and `make test` need only this directory: they set up .venv themselves.
# The first run takes minutes, later ones rebuild only what changed.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory --no-builtin-rules
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

# Other environments of the caller's shell must not leak into ours.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV PIP_USER PIP_TARGET PIP_PREFIX

PYTHON_IN_VENV := .venv/bin/python
JOBS ?= $(shell echo $$(( $$(nproc) + 1 )))  # tests spend half of their time waiting for another process
PYTEST := $(PYTHON_IN_VENV) -m pytest -n $(JOBS) --dist worksteal

FUZZ_SECONDS ?= 60
FUZZ_BYTES_MAX := 512

TYPED := $(wildcard src tests benchmarks examples tools)
CORE_SOURCES := pyproject.toml setup.py src/penstock/layout.py src/penstock/tunables.py \
    $(shell find src/penstock/core -name '*.p[yx][xi]' -o -name '*.h' | grep -v /core/layout)
# Includes directories, so that a deleted module is removed from the variants too.
PACKAGE_SOURCES := $(shell find src ! -path '*/__pycache__*' ! -path '*.egg-info*' \
    \( -type d -o -name '*.py' -o -name '*.pyi' -o -name py.typed \))

# An editable build is valid for one directory and one set of switches; for others it is built again.
SWITCHES := $(foreach switch,POLLING SANITIZE FUZZ PROFILE WERROR,$(switch)=$(PENSTOCK_$(switch)))
ifneq ($(shell cat .venv/.tools 2>/dev/null),$(CURDIR))
$(shell touch -c -d @0 .venv/.tools)
endif
ifneq ($(shell cat .venv/.core 2>/dev/null),$(SWITCHES))
$(shell rm -f .venv/.core)
endif

.PHONY: help demo check test lint test-polling test-asan bench fuzz storm wheel clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

demo: .venv/.core  ## a year of flights through logs and Spark into Parquet, and a killed writer
	@$(PYTHON_IN_VENV) -m examples.demo

check: lint  ## the inner loop: style, types and unit tests, in two to three minutes
	@$(PYTEST) -q tests/unit

test: lint  ## everything that must pass before a change is accepted
	@$(PYTEST)

lint: .venv/.core build/.werror build/.stubs  ## style, spelling, types, and a compile without warnings
	@$(PYTHON_IN_VENV) -m ruff check -q .
	@$(PYTHON_IN_VENV) -m ruff format -q --check .
	@$(PYTHON_IN_VENV) -m codespell_lib
	@$(PYTHON_IN_VENV) -m mypy --no-error-summary $(TYPED)

# Only the lock and the waiting differ from the ordinary build; everything else is tested there.
POLLING_UNITS := arguments control durability following fork frames handles load open producers \
    reading ring ring_holding ring_reading ring_resize ring_writing segments settings stats

test-polling: build/.polling  ## process tests, and units that lock or wait, without futex
	@echo "testing the polling build…"
	@PYTHONPATH="$(CURDIR)/build/polling" $(PYTEST) -q -p no:cacheprovider \
	    tests/process $(wildcard $(POLLING_UNITS:%=tests/unit/test_%.py))

# A sanitizer's report bypasses pytest's capture, or it would be lost with the process. A request for
# too much memory fails, as without sanitizers, and does not end the process.
test-asan: build/.asan  ## unit and property tests under the address and UB sanitizers
	@echo "testing the sanitized build…"
	@LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
	    ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc \
	    PYTHONPATH="$(CURDIR)/build/asan" $(PYTEST) -p no:cacheprovider --capture=sys \
	    $(wildcard tests/unit tests/property tests/edges tests/consumers tests/groups)

bench: .venv/.core  ## measure speed, always compared with something else
	@$(PYTHON_IN_VENV) -m benchmarks

# Interesting inputs are kept in build/corpus, so that the next run continues from there. An input
# that breaks something is left in build/findings; pass its file as FUZZ_INPUTS to run it again.
fuzz: build/.fuzz  ## change logs at random, guided by coverage, for FUZZ_SECONDS (60)
	@echo "fuzzing for $(FUZZ_SECONDS) seconds…"
	@mkdir -p build/corpus build/findings
	@tools/run_fuzzer.sh -max_total_time=$(FUZZ_SECONDS) -timeout=20 -max_len=$(FUZZ_BYTES_MAX) \
	    -artifact_prefix=build/findings/ $(or $(FUZZ_INPUTS),build/corpus tests/fuzz/corpus)

storm: .venv/.core fuzz test-polling  ## the long version of the crash, process and property tests, and fuzzing
	@PENSTOCK_STORM=1 $(PYTEST) \
	    $(wildcard tests/crash tests/process tests/property tests/consumers tests/groups tests/spark tests/edges tests/unit)

wheel: .venv/.core  ## build dist/*.whl and prove that it works without a compiler
	@echo "building the wheel…"
	@rm -rf dist
	@$(PYTHON_IN_VENV) -m build --no-isolation --outdir dist . >build/wheel.log 2>&1 \
	    || { cat build/wheel.log >&2; exit 1; }
	@$(PYTHON_IN_VENV) tools/check_wheel.py dist/*.whl

clean:  ## remove everything that make has made
	@rm -rf .venv build dist src/*.egg-info src/penstock/core/_core.c src/penstock/core/layout.* \
	    src/penstock/*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -prune -exec rm -rf {} +

.venv/.tools: pyproject.toml tools/bootstrap.sh
	@tools/bootstrap.sh

.venv/.core: .venv/.tools $(CORE_SOURCES)
	@echo "building the compiled core…"
	@$(PYTHON_IN_VENV) -m pip --disable-pip-version-check install -qq \
	    --no-deps --no-build-isolation -e .
	@mkdir -p build
	@echo "$(SWITCHES)" >$@

build/.werror: .venv/.core
	@echo "building the compiled core with warnings as errors…"
	@PENSTOCK_WERROR=1 $(PYTHON_IN_VENV) setup.py -q build_ext
	@touch $@

# It takes seconds, so it runs only when one of the two has changed.
build/.stubs: .venv/.core src/penstock/_core.pyi tools/stubtest_allowlist.txt
	@echo "comparing the stub with the compiled core…"
	@$(PYTHON_IN_VENV) -m mypy.stubtest --concise penstock._core --ignore-disjoint-bases \
	    --allowlist tools/stubtest_allowlist.txt >build/stubs.log || { cat build/stubs.log >&2; exit 1; }
	@touch $@

build/.polling: .venv/.core $(PACKAGE_SOURCES) tools/build_variant.sh
	@echo "building the polling variant…"
	@PENSTOCK_POLLING=1 PENSTOCK_WERROR=1 tools/build_variant.sh polling
	@touch $@

build/.asan: .venv/.core $(PACKAGE_SOURCES) tools/build_variant.sh
	@echo "building the sanitized variant…"
	@PENSTOCK_SANITIZE=1 tools/build_variant.sh asan
	@touch $@

build/.fuzz: .venv/.core $(PACKAGE_SOURCES) tools/build_variant.sh tools/install_fuzzer.sh
	@tools/install_fuzzer.sh
	@echo "building the variant for the fuzzer…"
	@CC=clang PENSTOCK_FUZZ=1 tools/build_variant.sh fuzz
	@touch $@
