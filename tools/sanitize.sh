#!/usr/bin/env bash
# Builds test programs with a sanitizer and runs each as a whole (quicker than one process a test).
#   tools/sanitize.sh asan|tsan TEST_PROGRAM...      # GTEST_FILTER as usual; logs in build/PRESET/logs
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
export PRESET=$preset
supp=$PWD/tests/sanitizers
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1:handle_abort=1
export LSAN_OPTIONS=suppressions=$supp/lsan.supp:print_suppressions=0
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export TSAN_OPTIONS=suppressions=$supp/tsan.supp:halt_on_error=0:second_deadlock_stack=1
export LANDBRIDGE_PYTHON=${LANDBRIDGE_PYTHON:-$PWD/.venv/bin/python}
tools/build.sh "$@"
mkdir -p "build/$preset/logs"
failed=0
for test in "$@"; do
  program=$(find "build/$preset/src" -name "$test" -type f -perm -u+x | head -1)
  [ -n "$program" ] || { echo "no program $test in build/$preset" >&2; exit 2; }
  log=build/$preset/logs/$test.log
  if "$program" --gtest_brief=1 >"$log" 2>&1; then
    printf '%-24s %s\n' "$test" "$(grep -aE 'tests? from .* ran|PASSED' "$log" | tail -1)"
  else
    printf '%-24s FAILED: %s\n' "$test" "$log"
    grep -a -m 5 -E 'ERROR: |WARNING: ThreadSan|runtime error|SUMMARY|Failure|FAILED' "$log" | cut -c1-200
    failed=1
  fi
done
exit $failed
