#!/bin/sh
# Provisions a slot of gate-databases.json: drops its database, whoever still uses it, and makes it anew.
set -eu
server=${POOL_SLOT_URL%/*}
database=${POOL_SLOT_URL##*/}
psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 "$server/postgres" \
    --command "DROP DATABASE IF EXISTS \"$database\" WITH (FORCE)" \
    --command "CREATE DATABASE \"$database\""
