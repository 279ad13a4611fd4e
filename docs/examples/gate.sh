#!/usr/bin/env bash
# A gate: waits for a slot of a pool, runs a command on it, and gives it back however that ends.
#
#     leasehub pool apply docs/examples/gate-databases.json
#     docs/examples/gate.sh gate-databases make test
#
# `leasehub run --pool POOL -- COMMAND` does all this in one process, and more. This is for a script that has to hold
# its slot itself. Exit: the command's own status, 75 when the slot was lost, 1 to 3 when there was none.
set -euo pipefail
pool=$1
shift
ttl_minutes=${GATE_TTL_MINUTES:-5}
beat_seconds=${GATE_BEAT_SECONDS:-30}
give_up_seconds=240
grant=$(mktemp)
acquiring='' command='' alive=''

leave() {
    local status=$?
    trap '' HUP INT TERM USR1
    trap - EXIT
    # It leaves the queue at once, or has been granted a slot, which is given back below.
    if [ -n "$acquiring" ]; then
        kill "$acquiring" 2>/dev/null || true
        wait "$acquiring" || true
    fi
    if [ -n "$command" ]; then stop_command; fi
    if [ -n "$alive" ]; then exec {alive}>&-; fi
    if [ -s "$grant" ]; then
        # shellcheck source=/dev/null
        . "$grant"
        on_slot release >&2 || true
    fi
    rm -f "$grant"
    exit "$status"
}

on_slot() {
    leasehub pool "$1" --pool "$pool" --slot "$POOL_LEASE_SLOT" --owner "$POOL_LEASE_OWNER" --token "$POOL_LEASE_TOKEN"
}

# The command and what is left of its group: a slot that is still written to must not be given back.
stop_command() {
    kill -TERM -- "-$command" 2>/dev/null || return 0
    for _ in {1..50}; do
        kill -0 -- "-$command" 2>/dev/null || return 0
        sleep 0.1
    done
    kill -KILL -- "-$command" 2>/dev/null || true
}

# Keeps the slot for as long as the gate lives: its end of the pipe closes with it, even after `kill -9`, when nobody
# else would stop the beats, nor the command.
beat() {
    local answered good=$SECONDS
    while answered=0 && { read -r -t "$beat_seconds" || answered=$?; } && [ "$answered" -gt 128 ]; do
        answered=0
        on_slot heartbeat >/dev/null || answered=$?
        if [ "$answered" = 0 ]; then good=$SECONDS; fi
        # Refused: the slot is lost. What else went wrong may pass, as long as nobody else can have the slot yet.
        if [ "$answered" = 1 ] || [ $((SECONDS - good)) -gt "$give_up_seconds" ]; then
            kill -USR1 $$
            return
        fi
    done
    kill -KILL -- "-$command" 2>/dev/null || true
}

trap leave EXIT
trap 'exit 75' USR1
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# The short way is eval "$(leasehub pool acquire … --shell)". But a trap waits for what is in the foreground, and a
# gate that is told to end must not stay in the queue. Its place there goes to stderr.
leasehub pool acquire --pool "$pool" --owner "gate:$$" --ttl "$ttl_minutes" --shell >"$grant" &
acquiring=$!
wait "$acquiring"
acquiring=''
# shellcheck source=/dev/null
. "$grant"

# With a group of its own, to be stopped whole.
setsid "$@" &
command=$!
exec {alive}> >(beat)
status=0
wait "$command" || status=$?
exit "$status"
