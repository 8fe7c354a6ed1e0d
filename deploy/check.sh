#!/usr/bin/env bash
# Checks the files of this folder with the tools that this machine has, and says
# which it could not check. Fails when a check that ran found a fault.
set -uo pipefail
cd "$(dirname "$0")/.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failed=0

report() { # report NAME STATUS FILE-WITH-OUTPUT
	if [ "$2" = 0 ]; then
		echo "ok       $1"
	else
		echo "FAILED   $1"
		sed 's/^/         /' "$3"
		failed=1
	fi
}

# The server is the one that go.mod pins.
conf() {
	export BROKER_PASSWORD=a BROKER_SYS_PASSWORD=b
	go build -o "$tmp/nats-server" github.com/nats-io/nats-server/v2 &&
		"$tmp/nats-server" -t -c deploy/nats-server.conf
}
conf >"$tmp/out" 2>&1
report "nats-server.conf (nats-server -t)" $? "$tmp/out"

# verify wants every program to be there: a copy runs one that always is.
units() {
	mkdir -p "$tmp/units"
	for u in deploy/systemd/*.service; do
		sed -E 's#^(ExecStart=)/usr/local/bin/[a-z-]+#\1/bin/true#' "$u" >"$tmp/units/$(basename "${u/@./@default.}")"
	done
	SYSTEMD_UNIT_PATH="$tmp/units:" systemd-analyze verify --man=no "$tmp"/units/*.service 2>&1 | grep -F "$tmp/units"
	[ "${PIPESTATUS[0]}" = 0 ]
}
if command -v systemd-analyze >/dev/null; then
	units >"$tmp/out" 2>&1
	status=$?
	[ -s "$tmp/out" ] && status=1 # an unknown key is only a warning
	report "systemd units (systemd-analyze verify)" $status "$tmp/out"
else
	echo "skipped  systemd units: systemd-analyze is not here"
fi

if docker compose version >/dev/null 2>&1; then
	BROKER_PASSWORD=a BROKER_SYS_PASSWORD=b docker compose -f deploy/compose.yaml config -q >"$tmp/out" 2>&1
	report "compose.yaml (docker compose config)" $? "$tmp/out"
else
	echo "skipped  compose.yaml: docker compose is not here"
fi

exit $failed
