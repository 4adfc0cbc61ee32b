#!/usr/bin/env bash
# Installs what fuzzing needs besides the development tools: clang, and the `fuzz` group of pyproject.toml.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v clang >/dev/null; then
    if [[ $(id -u) != 0 || ! -e /etc/debian_version ]] || ! command -v apt-get >/dev/null; then
        echo "Fuzzing needs clang: install it (Debian, Ubuntu: apt-get install clang) and run make" \
            "again." >&2
        exit 1
    fi
    echo "installing clang…"
    scratch=$(mktemp)
    trap 'rm -f "$scratch"' EXIT
    export DEBIAN_FRONTEND=noninteractive
    if ! { apt-get -q update && apt-get -q install -y --no-install-recommends clang; } \
        >"$scratch" 2>&1 </dev/null; then
        cat "$scratch" >&2
        exit 1
    fi
fi

echo "installing the fuzzer…"
.venv/bin/python -m pip --disable-pip-version-check install -qq --group fuzz
