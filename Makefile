# Everything a user or a contributor types. The build itself is CMake's (CMakeLists.txt, tools/build.sh).
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup build quickstart test test-cpp test-python test-libraries test-asan test-tsan bench clean distclean

# Where C++ tests find the plugin.
export LANDBRIDGE_PYTHON := $(CURDIR)/.venv/bin/python

# The oldest JAX that is supported: tests run its client beside the newest.
OLDEST_CLIENT := 0.8.2
BINARIES := landbridge landbridge-server landbridge-proxy landbridge-compiler landbridge-one landbridge-simulated-workers
BIN := build/release/bin

help:
	@echo "make quickstart  build all, then train a small model on two slices of CPU devices"
	@echo "make build       set up this machine and build ./landbridge and the servers"
	@echo "make test        run all tests: C++ (ctest), end to end (pytest)"
	@echo "make test-libraries  run tests of optax and flax on plain JAX and through a cluster, and compare"
	@echo "make test-asan   C++ tests under address and undefined-behaviour sanitizer; make test-tsan: thread sanitizer"
	@echo "make bench       run the benchmarks of bench/"
	@echo "make clean       remove what was built; make distclean also .venv"

setup:
	@tools/setup.sh

build: setup
	@echo "[build] release binaries: $(BINARIES)"
	@tools/build.sh $(BINARIES)
	@ln -sfn $(BIN)/landbridge landbridge
	@echo "[build] done: ./landbridge is the command-line tool, .venv/ the Python environment"

quickstart:
	@tools/quickstart.sh

test: setup
	@echo "[test] building everything, tests included"
	@tools/build.sh all
	@ln -sfn $(BIN)/landbridge landbridge
	@$(MAKE) --no-print-directory test-cpp
	@$(MAKE) --no-print-directory test-python

# The two halves of `test`, on what is built. Tests in Python wait more than they compute: two at a time, each of the
# two processes with a cluster of its own.
PYTEST := .venv/bin/python -m pytest -q -n 2 --dist worksteal
test-cpp:
	@echo "[test] C++"
	@ctest --test-dir build/release --output-on-failure --no-tests=error -j 2

test-python:
	@echo "[test] Python package and command-line tool"
	@$(PYTEST) python/tests tests/cli tests/repo
	@echo "[test] end to end, with stock JAX"
	@tools/client_env.sh $(OLDEST_CLIENT)
	@$(PYTEST) tests/e2e

# Optax's and flax's own tests, on plain JAX and here.
test-libraries: build
	@.venv/bin/python tests/libraries/run.py

# See CONTRIBUTING.md.
ASAN_TESTS ?= base_test env_test cluster_test sharding_test hlo_test dataplane_test collectives_test worker_test \
  controller_test resource_manager_test frontdoor_test sim_test bin_test cli_test pjrt_test compiler_test \
  worker_shell_test worker_simulated_test custom_calls_test proxy_test
TSAN_TESTS ?= base_test env_test cluster_test dataplane_test collectives_test worker_test controller_test \
  resource_manager_test sim_test

test-asan:
	@tools/sanitize.sh asan $(ASAN_TESTS)

test-tsan:
	@tools/sanitize.sh tsan $(TSAN_TESTS)

bench: build
	@tools/build.sh grpc_echo dataplane_benchmark dispatch_driver
	@.venv/bin/python bench/stock_door.py
	@.venv/bin/python bench/dispatch.py
	@.venv/bin/python bench/controller.py
	@.venv/bin/python bench/overlap.py
	@.venv/bin/python bench/wide.py
	@.venv/bin/python bench/reshard.py
	@.venv/bin/python bench/collectives.py
	@.venv/bin/python bench/compile_cache.py
	@.venv/bin/python bench/programs.py
	@.venv/bin/python bench/ucx.py
	@.venv/bin/python bench/deaths.py --kills 20
	@.venv/bin/python bench/big.py --sizes 64x8 512x4

clean:
	rm -rf build landbridge

distclean: clean
	rm -rf .venv python/landbridge.egg-info
