#!/usr/bin/env bash
# Shows that the simulator finds bugs: puts each of tests/seeded_bugs/*.patch into a copy of the sources, builds
# landbridge-sim there, and runs seeds until one fails. Exit code 1 if a bug is not found, or if the sources without any
# of them fail. The copy is kept: the next time only what has changed is compiled.
#   tools/seeded_bugs.sh [NAME...]      # SEEDS=200 COPY=build/seeded_bugs by default
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
seeds=${SEEDS:-200}
limit_s=${LIMIT_S:-300}                 # a run that does not end is a bug found, too
copy=$(realpath -m "${COPY:-build/seeded_bugs}")
mkdir -p "$copy"
exec 8>"$copy/.lock"
flock 8

# Only files that differ are written, with the time of now: what an interrupted run has left is compiled again, and
# nothing else is.
refresh() {
  local file
  while IFS= read -r -d '' file; do
    cmp -s "$file" "$copy/$file" && continue
    mkdir -p "$copy/$(dirname "$file")"
    cp "$file" "$copy/$file"
  done < <(find CMakeLists.txt src bench tools -type f -print0)
  while IFS= read -r -d '' file; do
    [ -e "$file" ] || rm "$copy/$file"
  done < <(cd "$copy" && find CMakeLists.txt src bench tools -type f -print0)
}
build() {
  (cd "$copy" && PRESET=release tools/build.sh landbridge-sim) >"$copy/build.log" 2>&1 ||
    { tail -30 "$copy/build.log"; echo "the copy with the bug does not build: $copy"; exit 2; }
}
simulate() {
  timeout "$limit_s" "$copy/build/release/bin/landbridge-sim" --first=1 --count="$seeds" --failures=1 \
    >"$copy/run.log" 2>&1
}
# Why a run failed: the rule that broke, the invariant of our own that stopped it, or that it did not end.
reason() {
  local code=$1
  if [ "$code" = 124 ]; then
    echo "does not end within $limit_s s"
  elif grep -aq '^seed ' "$copy/run.log"; then
    echo "seed $(sed -n '/^seed /{s/^seed \([0-9]*\) .*/\1/p;q}' "$copy/run.log"):" \
      "$(sed -n '/^seed /{n;p;q}' "$copy/run.log" | cut -c3-140)"
  else
    echo "stops: $(tail -1 "$copy/run.log" | cut -c1-140)"
  fi
}

patches=()
for name in "$@"; do patches+=("$root/tests/seeded_bugs/$name.patch"); done
[ $# -gt 0 ] || patches=("$root"/tests/seeded_bugs/*.patch)

refresh
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
  patch -s -p1 -d "$copy" <"$patch" || { echo "$name does not apply any more: make it anew"; exit 2; }
  build
  code=0
  simulate || code=$?
  if [ "$code" = 0 ]; then
    printf '%-23s NOT FOUND in %s seeds\n' "$name" "$seeds"
    missed=1
  else
    printf '%-23s %s\n' "$name" "$(reason "$code")"
  fi
  refresh
done
exit $missed
