#!/usr/bin/env bash
# Shows that the simulator finds bugs: puts each of tests/seeded_bugs/*.patch into a throw-away copy of the sources,
# builds landbridge-sim there, and runs seeds until one fails. Exit code 1 if a bug is not found, or if the sources
# without any of them fail.
#   tools/seeded_bugs.sh [NAME...]      # SEEDS=400 by default
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
seeds=${SEEDS:-400}
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
mkdir -p "$copy/tools"
cp -a CMakeLists.txt src "$copy/"
cp -a tools/build.sh "$copy/tools/"
# The compiler cache shall not see where the copy lies: the second time costs little.
export CCACHE_BASEDIR=$copy CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=time_macros

build() {
  (cd "$copy" && tools/build.sh landbridge-sim) >"$copy/build.log" 2>&1 || { tail -30 "$copy/build.log"; exit 1; }
}
simulate() { "$copy/build/release/bin/landbridge-sim" --first=1 --count="$seeds" --failures=1 >"$copy/run.log" 2>&1; }

patches=()
for name in "$@"; do patches+=("tests/seeded_bugs/$name.patch"); done
[ $# -gt 0 ] || patches=(tests/seeded_bugs/*.patch)

build
if ! simulate; then
  echo "the simulator fails without a seeded bug:"
  head -3 "$copy/run.log" | cut -c1-400
  exit 1
fi
echo "no bug                  none of $seeds seeds fails"
missed=0
for patch in "${patches[@]}"; do
  name=$(basename "$patch" .patch)
  patch -s -p1 -d "$copy" <"$root/$patch"
  build
  if simulate; then
    printf '%-23s NOT FOUND in %s seeds\n' "$name" "$seeds"
    missed=1
  else
    printf '%-23s seed %s: %s\n' "$name" "$(sed -n 's/^seed \([0-9]*\) .*/\1/p' "$copy/run.log" | head -1)" \
      "$(sed -n 2p "$copy/run.log" | cut -c3-140)"
  fi
  patch -s -R -p1 -d "$copy" <"$root/$patch"
done
exit $missed
