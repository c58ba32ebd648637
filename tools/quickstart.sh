#!/usr/bin/env bash
# From a fresh checkout to a model that trains on two slices. Says what it does at each stage.
set -euo pipefail
cd "$(dirname "$0")/.."
started=$SECONDS

stage() { echo; echo "== $*"; }

stage "1/3  Setting up this machine and building Landbridge (the first time takes some minutes)"
make --no-print-directory build

stage "2/3  Starting a local cluster and training on it"
cat <<'TEXT'
    1 resource manager, 1 proxy, 2 slices of one worker process with 4 CPU devices each. The training script is
    plain JAX: the first half of a small transformer lives on slice 0, the second half on slice 1.
    $ ./landbridge run --slices 2 --devices-per-worker 4 -- .venv/bin/python examples/train_lm.py --steps 60
TEXT
echo
# jaxlib warns about plaintext credentials at the start and about the closed connection at the end.
TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}" \
  ./landbridge run --slices 2 --devices-per-worker 4 -- \
  .venv/bin/python examples/train_lm.py --steps "${STEPS:-60}"

stage "3/3  Done in $((SECONDS - started)) s. The cluster has been shut down. What to try next"
cat <<'TEXT'
    source .venv/bin/activate

    # The same script on plain JAX, without Landbridge: the losses are the same.
    XLA_FLAGS=--xla_force_host_platform_device_count=8 JAX_PLATFORMS=cpu python examples/train_lm.py --steps 60

    # Weights and optimizer state split over the devices of one slice.
    ./landbridge run --slices 2 -- python examples/train_lm.py --mode fsdp

    # A cluster that stays, and any JAX program of yours.
    eval "$(./landbridge up --slices 2)"
    python examples/hello.py
    ./landbridge status
    ./landbridge down
TEXT
