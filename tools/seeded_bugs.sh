#!/usr/bin/env bash
# Shows that the simulator finds bugs: puts each of tests/seeded_bugs/*.patch into a throw-away copy of the sources,
# builds landbridge-sim there, and runs seeds until one fails. Exit code 1 if a bug is not found, or if the sources
# without any of them fail.
#   tools/seeded_bugs.sh [NAME...]      # SEEDS=1000 by default
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
seeds=${SEEDS:-1000}
limit_s=300                             # a run that does not end is a bug found, too
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
for part in CMakeLists.txt cmake src bench tools; do  # with their times: what the compiler cache holds is used
  [ ! -e "$part" ] || cp -a "$part" "$copy/"
done

build() {
  (cd "$copy" && PRESET=release tools/build.sh landbridge-sim) >"$copy/build.log" 2>&1 ||
    { tail -30 "$copy/build.log"; exit 1; }
}
simulate() {
  timeout "$limit_s" "$copy/build/release/bin/landbridge-sim" --first=1 --count="$seeds" --failures=1 >"$copy/run.log" 2>&1
}
# Why a run failed: the rule that broke, the invariant of our own that stopped it, or that it did not end.
reason() {
  local code=$1
  if [ "$code" = 124 ]; then
    echo "does not end within $limit_s s"
  elif grep -aq '^seed ' "$copy/run.log"; then
    echo "seed $(sed -n 's/^seed \([0-9]*\) .*/\1/p' "$copy/run.log" | head -1):$(sed -n '/^seed /{n;p;q}' "$copy/run.log" | cut -c2-140)"
  else
    echo "stops: $(tail -1 "$copy/run.log" | cut -c1-140)"
  fi
}

patches=()
for name in "$@"; do patches+=("tests/seeded_bugs/$name.patch"); done
[ $# -gt 0 ] || patches=(tests/seeded_bugs/*.patch)

build
code=0
simulate || code=$?
if [ "$code" != 0 ]; then
  echo "the simulator fails without a seeded bug: $(reason "$code")"
  exit 1
fi
printf '%-23s none of %s seeds fails\n' "no bug" "$seeds"
missed=0
for patch in "${patches[@]}"; do
  name=$(basename "$patch" .patch)
  patch -s -p1 -d "$copy" <"$root/$patch"
  build
  code=0
  simulate || code=$?
  if [ "$code" = 0 ]; then
    printf '%-23s NOT FOUND in %s seeds\n' "$name" "$seeds"
    missed=1
  else
    printf '%-23s %s\n' "$name" "$(reason "$code")"
  fi
  patch -s -R -p1 -d "$copy" <"$root/$patch"
done
exit $missed
