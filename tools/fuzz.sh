#!/usr/bin/env bash
# Fuzzes parsers and state machines with libFuzzer under address and undefined-behaviour sanitizer. What is found lies in
# build/asan/found; the corpus grows in build/asan/corpus/NAME.
#   tools/fuzz.sh [NAME|all] [SECONDS]      # NAME as in lb_fuzz(NAME ...); default: all, 180 seconds each
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:-all}
seconds=${2:-180}
build=build/asan
if [ "$name" = all ]; then
  PRESET=asan tools/build.sh fuzzers
  names=()
  for program in "$build"/fuzz/*_fuzz; do names+=("$(basename "$program" _fuzz)"); done
else
  PRESET=asan tools/build.sh "${name}_fuzz"
  names=("$name")
fi
mkdir -p "$build/found"
failed=0
for one in "${names[@]}"; do
  program=$build/fuzz/${one}_fuzz
  corpus=$build/corpus/$one
  log=$build/found/$one.log
  mkdir -p "$corpus"
  "$program" "-write_seeds=$corpus"
  kept=()
  [ -d "tests/fuzz/$one" ] && kept=("tests/fuzz/$one")
  # -malloc_limit_mb: nothing is allocated because a peer announces it.
  if "$program" "$corpus" "${kept[@]}" "-max_total_time=$seconds" -max_len=16384 -timeout=20 -rss_limit_mb=2048 \
      -malloc_limit_mb=256 "-artifact_prefix=$build/found/$one-" -print_final_stats=1 >"$log" 2>&1; then
    printf '%-20s %s runs, %s edges, %s inputs\n' "$one" \
      "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" \
      "$(grep -o 'cov: [0-9]*' "$log" | tail -1 | cut -d' ' -f2)" "$(find "$corpus" -type f | wc -l)"
  else
    printf '%-20s FAILED: %s\n' "$one" "$log"
    grep -m 3 -E 'ERROR|runtime error|CHECK|SUMMARY|Test unit written' "$log" | cut -c1-300
    failed=1
  fi
done
exit $failed
