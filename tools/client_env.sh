#!/usr/bin/env bash
# A Python environment with the client side of another JAX, for tests/e2e/test_client_versions.py:
#   tools/client_env.sh VERSION... -> build/clients/VERSION
# What JAX itself needs is pinned as in python/requirements.txt. Safe to run again: then it takes no time.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || { echo "usage: tools/client_env.sh VERSION..., e.g. 0.8.2 0.9.2 0.10.0" >&2; exit 2; }
[ -x .venv/bin/python ] || { echo "tools/client_env.sh: there is no .venv; run make setup first" >&2; exit 1; }

for version in "$@"; do
  [[ $version =~ ^[0-9]+(\.[0-9]+)+$ ]] || { echo "tools/client_env.sh: $version is no version of JAX" >&2; exit 2; }
  env=build/clients/$version
  sum=$(grep -vE '^jax(lib)?==' python/requirements.txt | cat - tools/client_env.sh | sha256sum)
  [ "$(cat "$env/.landbridge-stamp" 2>/dev/null)" = "$sum" ] && continue
  echo "[client] making $env with jax $version"
  rm -rf "$env"
  mkdir -p build/clients
  .venv/bin/python -m venv "$env"
  grep -vE '^jax(lib)?==' python/requirements.txt >"$env/constraints.txt"
  "$env/bin/python" -m pip install -q --disable-pip-version-check --no-compile --only-binary :all: -c "$env/constraints.txt" \
    "jax==$version" "jaxlib==$version" grpcio
  echo "$sum" >"$env/.landbridge-stamp"
done
