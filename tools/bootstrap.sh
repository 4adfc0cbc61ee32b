#!/usr/bin/env bash
# Makes .venv with the development tools in it, on a machine that may have only make.
#
#   1. Find a Python >= 3.11 that can make virtual environments and whose headers compile.
#   2. If there is none and we are root on Debian, install what is missing and search again.
#   3. Make .venv from it (again if it is broken or was made for another directory).
#   4. Install the `dev` group of pyproject.toml. The Makefile installs the package itself.
#   5. Make sure that there is a Java for Spark, and a tmux for tests of the command line, or say
#      what is missing; all else works without.
#
# PYTHON=/path/to/python chooses the interpreter.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(gcc libc6-dev python3-dev python3-venv)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

say() { printf '%s\n' "$*"; }

is_recent() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

has_venv() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null
}

# Builds a shared object like the extension: only that proves that a compiler, the C library's
# headers and Python's own headers exist.
has_headers() {
    local include compiler
    include=$("$1" -c 'import sysconfig; print(sysconfig.get_path("include"))') || return 1
    compiler=${CC:-$("$1" -c 'import sysconfig; print(sysconfig.get_config_var("CC") or "cc")')}
    echo '#include <Python.h>' >"$scratch/probe.c"
    # CC may carry arguments ("ccache gcc"), so it is split on purpose.
    # shellcheck disable=SC2086
    $compiler -shared -fPIC -I"$include" "$scratch/probe.c" -o "$scratch/probe.so" 2>/dev/null
}

# Sets `python` to the first usable interpreter.
find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.{14,13,12,11} /usr/bin/python3; do
        if is_recent "$candidate" && has_venv "$candidate" && has_headers "$candidate"; then
            python=$candidate
            return 0
        fi
        if [[ -n ${PYTHON:-} ]]; then
            return 1
        fi
    done
    return 1
}

install_packages() {
    [[ $(id -u) == 0 && -e /etc/debian_version ]] && command -v apt-get >/dev/null || return 1
    say "installing $*…"
    export DEBIAN_FRONTEND=noninteractive
    if ! { apt-get -q update && apt-get -q install -y --no-install-recommends "$@"; } \
        >"$scratch/apt.log" 2>&1 </dev/null; then
        cat "$scratch/apt.log" >&2
        return 1
    fi
}

# Spark 4 needs Java 17 or newer; the first line says 'openjdk version "17.0.15" …'.
has_java() {
    local java=java
    if [[ -n ${JAVA_HOME:-} ]]; then
        java=$JAVA_HOME/bin/java
    fi
    "$java" -version 2>&1 | awk -F'[".]' '/version/ { exit !($2 >= 17); } END { if (!NR) exit 1 }'
}

if ! find_python && ! { install_packages "${packages[@]}" && find_python; }; then
    say "Penstock needs Python 3.11 or newer with its headers and venv module, and a C compiler:" \
        "install them (Debian, Ubuntu: apt-get install ${packages[*]}) and run make again." >&2
    exit 1
fi

if [[ $(cat .venv/.tools 2>/dev/null) != "$PWD" ]] || ! .venv/bin/python -m pip --version &>/dev/null
then
    say "making .venv…"
    "$python" -m venv --clear .venv
fi

say "installing the development tools…"
pip=(.venv/bin/python -m pip --disable-pip-version-check install -qq)
"${pip[@]}" --upgrade 'pip>=25.1'
"${pip[@]}" --group dev

if ! has_java && ! { install_packages openjdk-17-jre-headless && has_java; } \
    && ! { install_packages openjdk-21-jre-headless && has_java; }; then
    say "There is no Java 17 or newer, which Spark needs: install one (Debian, Ubuntu: apt-get" \
        "install openjdk-17-jre-headless); until then all that needs Spark is skipped." >&2
fi
if ! command -v tmux >/dev/null && ! { install_packages tmux && command -v tmux >/dev/null; }; then
    say "There is no tmux, in which the command line is tested (Debian, Ubuntu: apt-get install tmux);" \
        "until then the tests that need a terminal are skipped." >&2
fi
printf '%s\n' "$PWD" >.venv/.tools
