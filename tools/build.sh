#!/usr/bin/env bash
# Configures (once) and builds the given targets (default: all) in build/PRESET. Several callers may
# share one build folder: they take turns, since ninja itself does not lock it.
#   PRESET=release|asan|tsan tools/build.sh [target...]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${PRESET:-release}
dir=build/$preset
mkdir -p "$dir"
exec 9>"$dir/.lock"
flock 9
# Checkouts of this repository on one machine share what ccache holds.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
if [ ! -f "$dir/build.ninja" ]; then
  case "$preset" in
    release) args=(-DCMAKE_BUILD_TYPE=Release) ;;
    asan)  # with libFuzzer, for tools/fuzz.sh
      command -v clang++-14 >/dev/null ||
        { echo "PRESET=asan needs clang: apt-get install clang-14 libclang-rt-14-dev llvm-14" >&2; exit 2; }
      args=(-DCMAKE_BUILD_TYPE=RelWithDebInfo -DLB_SANITIZE=address
        -DCMAKE_C_COMPILER=clang-14 -DCMAKE_CXX_COMPILER=clang++-14) ;;
    tsan) args=(-DCMAKE_BUILD_TYPE=RelWithDebInfo -DLB_SANITIZE=thread) ;;
    *) echo "unknown preset $preset (release, asan, tsan)" >&2; exit 2 ;;
  esac
  cmake -S . -B "$dir" -G Ninja "${args[@]}" >"$dir/configure.log" 2>&1 || { cat "$dir/configure.log"; exit 1; }
fi
ninja -C "$dir" -k 0 "$@"
