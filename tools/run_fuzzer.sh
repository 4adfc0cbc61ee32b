#!/usr/bin/env bash
# Runs tests/fuzz/segments.py with the arguments given, against the build in build/fuzz.
#
# The runtime of the core's sanitizers, and the fuzzer that reads its coverage, are in one library of
# atheris, which must be loaded before Python. Each object gets separate memory (PYTHONMALLOC), so
# that a read past its end is detected.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."

runtime=$(.venv/bin/python -c 'import atheris; print(atheris.path())')/asan_with_fuzzer.so
export LD_PRELOAD=$runtime PYTHONPATH=$PWD/build/fuzz PYTHONMALLOC=malloc
export ASAN_OPTIONS=detect_leaks=0:malloc_context_size=2:quarantine_size_mb=16 UBSAN_OPTIONS=print_stacktrace=1
exec .venv/bin/python -m tests.fuzz.segments "$@"
