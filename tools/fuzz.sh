#!/usr/bin/env bash
# Runs every fuzz target of the tree for the given time, one after another.
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-30s}
grep -rlE '^func Fuzz[A-Za-z0-9_]+\(' --include='*_test.go' . | sort | while read -r file; do
	grep -oE '^func Fuzz[A-Za-z0-9_]+' "$file" | cut -d' ' -f2 | while read -r target; do
		echo "== $(dirname "$file") $target"
		# Minimizing an input that is merely interesting may take a minute each.
		go test "$(dirname "$file")" -run='^$' -fuzz="^$target\$" -fuzztime="$time" -fuzzminimizetime=1x
	done
done
