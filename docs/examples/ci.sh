#!/bin/sh
# A job of CI that deploys one at a time: it waits for the lease, runs while it holds it, and gives it back.
#
#   RESOURCE=deploy/checkout BUILD="make build" DEPLOY="make deploy" docs/examples/ci.sh
#
# LEASEHUB_URL and LEASEHUB_TOKEN come from the secrets of CI. Exit: that of the commands; 1 when the lease did not come
# within WAIT seconds; 75 when it was lost, and everything that ran under it was stopped.
set -eu

if [ "${1:-}" != --holding ]; then
    exec leasehub run --resource "$RESOURCE" --purpose "${BUILD_URL:-a job of CI}" \
        --ttl-seconds "${TTL:-120}" --wait-seconds "${WAIT:-600}" -- "$0" --holding
fi

sh -c "$BUILD"

# The last look before what cannot be undone: is the token that this job was given still the newest one?
python3 - <<'PYTHON'
import os
import sys

import leasehub.client

resource = os.environ["LEASEHUB_RESOURCE_TYPE"], os.environ["LEASEHUB_RESOURCE_ID"]
with leasehub.client.connect() as hub:
    if not hub.fence_check(*resource, int(os.environ["LEASEHUB_FENCING_TOKEN"])):
        sys.exit("another deployment is under way: this one stops here")
PYTHON

# Whatever is deployed to can refuse a stale job by the same number.
sh -c "$DEPLOY"
