"""A database that an earlier version made and used is brought up to date, and nothing in it is lost."""

import hashlib
from pathlib import Path

import pytest

from tests.installation import Installation

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
#: Where each application stood in the first version that anybody may have.
FIRST = {"identity": "0002", "events": "0002", "leases": "0004", "pools": "0001", "handoffs": "0001"}
USED = """
from leasehub.identity import services as identity
from leasehub.identity.authentication import authenticate
from handoffs import services as handoffs
from leases import services as leases
from leases.queues import services as queues
from leases.queues.engines import NewTask
organization = identity.create_organization(name="acme")
principal = identity.create_principal(organization=organization.pk, handle="agent")
_, secret = identity.issue_key(principal=principal, rings=(1, 2, 3))
caller = authenticate(f"Bearer {secret}")
held = leases.acquire(caller=caller, resource_type="deploy", resource_id="checkout", ttl_seconds=3600)
queues.put(caller=caller, queue="build", tasks=[NewTask(payload={"n": 1}), NewTask(payload={"n": 2})])
(claimed,) = queues.claim(caller=caller, queue="build", ttl_seconds=3600)
sent = handoffs.send(actor=leases.Actor.of(caller), to_principal="agent", subject_id="half", lease_ids=[f"lease_{held.lease_id.hex}"])
{"secret": secret, "lease_id": held.lease_id.hex, "token": held.fencing_token, "task": claimed.task.hex, "task_token": claimed.fencing_token, "handoff": sent.public_id.hex}
"""  # noqa: E501
GOES_ON = """
from uuid import UUID
from handoffs import services as handoffs
from leasehub.events import feed
from leasehub.identity.authentication import authenticate
from leases import services as leases
from leases.queues import services as queues
from pools import services as pools
was = {was}
caller = authenticate("Bearer " + was["secret"])
leases.heartbeat(caller=caller, lease_id=UUID(was["lease_id"]), fencing_token=was["token"])
queues.complete(caller=caller, task_id=UUID(was["task"]), fencing_token=was["task_token"])
(second,) = queues.claim(caller=caller, queue="build", ttl_seconds=60)
actor = leases.Actor.of(caller)
accepted = handoffs.accept(actor=actor, handoff_id=UUID(was["handoff"]), holder="agent")
pools.declare(actor=actor, name="phones", document={{"slots": [{{"id": 1}}]}})
granted = pools.request(caller=caller, pool="phones", mode="blocking")
feed.stamp_all()
{{"payload": second.payload, "moved": len(accepted.moved), "grew": accepted.moved[0].grant.fencing_token > was["token"], "granted": granted.state}}
"""  # noqa: E501


def test_what_an_earlier_version_left_goes_on(installation: Installation) -> None:
    # After whatever is migrated the schedule and the permissions are brought up to date.
    for application in ("django_celery_beat", "auth"):
        _done(installation, "migrate", application)
    for application, number in FIRST.items():
        _done(installation, "migrate", application, number)
    was = installation.python(USED)
    _done(installation, "migrate")
    now = installation.python(GOES_ON.format(was=was))
    assert now == {"payload": '{"n": 2}', "moved": 1, "grew": True, "granted": "ready"}
    _done(installation, "check_invariants")


#: The last migration that brings each file of SQL to a database, and the beginning of its SHA-256 then.
BROUGHT = {
    "leases/sql/lease_functions.sql": (
        "leases/migrations/0006_functions_again.py",
        "57d84fbf14ba",
    ),
    "leases/sql/task_functions.sql": (
        "leases/migrations/0004_task_functions.py",
        "8412f0caa01e",
    ),
    "pools/sql/pool_functions.sql": (
        "pools/migrations/0002_functions.py",
        "f2972bb1dd44",
    ),
    "leasehub/mcp/sql/unread.sql": (
        "leasehub/mcp/migrations/0002_unread.py",
        "bcc4c64e698d",
    ),
}


@pytest.mark.parametrize("file", BROUGHT)
def test_what_is_changed_in_sql_comes_with_a_migration(file: str) -> None:
    """A new database gets what the file says today; one that there is already gets it by a new migration alone."""
    migration, known = BROUGHT[file]
    assert Path(file).name in (ROOT / migration).read_text()
    now = hashlib.sha256((ROOT / file).read_bytes()).hexdigest()[:12]
    assert now == known, f"bring {file} to databases in a migration of its own, then note it here: {now}"


def test_every_file_of_sql_is_known() -> None:
    files = {str(path.relative_to(ROOT)) for path in ROOT.glob("**/sql/*.sql") if ".venv" not in path.parts}
    assert files == set(BROUGHT)


def _done(installation: Installation, *words: str) -> None:
    done = installation.run(*installation.command(*words))
    assert done.returncode == 0, done.stdout + done.stderr
