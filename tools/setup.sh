#!/usr/bin/env bash
# Installs what building and testing need: Debian packages (only those that are missing) and .venv with the pinned
# Python packages and the landbridge package of this checkout. Safe to run again: then it takes a second.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(build-essential cmake ninja-build ccache mold pkg-config
  libgrpc++-dev libgrpc-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libabsl-dev
  libuv1-dev libgtest-dev libgmock-dev libbenchmark-dev
  nlohmann-json3-dev libspdlog-dev libcli11-dev libssl-dev libjemalloc-dev python3-venv libpython3.11)

say() { echo "[setup] $*"; }
fail() { echo "[setup] error: $*" >&2; exit 1; }

install_debian_packages() {
  command -v dpkg-query >/dev/null || {
    say "this is no Debian system; these packages (or their like) must be installed: ${packages[*]}"
    return
  }
  local missing=()
  for package in "${packages[@]}"; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    say "Debian packages: all ${#packages[@]} are installed"
    return
  fi
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "as root, run: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  say "Debian packages: installing ${missing[*]}"
  "${as_root[@]}" apt-get update -q
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
}

find_python() {
  local candidate
  for candidate in "${PYTHON:-python3}" python3.11 python3.12 python3.13 /usr/bin/python3; do
    if command -v "$candidate" >/dev/null &&
        "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  fail "no Python 3.11 or later with the venv module was found; install one, or name it: PYTHON=/path make build"
}

make_environment() {
  local sum stamp=.venv/.landbridge-stamp
  sum=$(cat python/requirements.txt python/requirements-test.txt python/pyproject.toml tools/setup.sh | sha256sum)
  if [ -x .venv/bin/python ] && [ "$(cat $stamp 2>/dev/null)" = "$sum" ]; then
    say "Python environment: .venv is up to date"
    return
  fi
  if [ ! -x .venv/bin/python ]; then
    local python
    python=$(find_python)
    say "Python environment: making .venv with $python ($("$python" --version))"
    "$python" -m venv .venv
  fi
  say "Python environment: installing pinned packages into .venv (jax, optax, orbax, the CPU plugin, pytest, ...)"
  .venv/bin/python -m pip install -q --disable-pip-version-check \
    -r python/requirements.txt -r python/requirements-test.txt
  say "Python environment: installing the landbridge package of this checkout"
  # Editable: changes in python/ count at once.
  .venv/bin/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e python
  echo "$sum" >$stamp
}

install_debian_packages
make_environment
