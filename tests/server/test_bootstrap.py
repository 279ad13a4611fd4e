import json
import signal
import sqlite3
import stat
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client

from leasehub.identity.authentication import authenticate
from leasehub.identity.models import ApiKey, Organization
from leasehub.management import bootstrap
from tests.conftest import Caster
from tests.installation import URL, Installation

COUNT = """
from leasehub.identity.authentication import authenticate
from leasehub.identity.models import ApiKey, Organization
from django.contrib.auth.models import User
rings = sorted(authenticate("Bearer {token}").rings)
[Organization.objects.count(), ApiKey.objects.count(), User.objects.count(), rings]
"""


def made(installation: Installation) -> Any:
    """Organizations, keys, users, and the rings of the key in the file."""
    return installation.python(COUNT.format(token=installation.credentials["token"]))


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


@pytest.mark.processes
def test_the_first_run_makes_everything_and_later_ones_find_it(installation: Installation):
    facts = installation.bootstrap()
    first = installation.credentials
    assert facts["first_run"] and facts["credentials"] == str(installation.data / "credentials.json")
    assert set(first) == {"url", "organization", "principal", "token", "admin_user", "admin_password"}
    assert made(installation) == [1, 1, 1, [1, 2, 3]]

    again = installation.bootstrap()
    assert not again["first_run"] and again["credentials"] == facts["credentials"]
    assert installation.credentials == first

    installation.bootstrap("https://hub.example.org")
    assert installation.credentials == {**first, "url": "https://hub.example.org"}
    assert made(installation) == [1, 1, 1, [1, 2, 3]]

    assert mode(installation.data) == 0o700
    for file in installation.data.iterdir():
        assert mode(file) == 0o600, file


@pytest.mark.processes
def test_nothing_secret_is_readable_in_a_folder_that_others_may_enter(installation: Installation):
    installation.data.mkdir(mode=0o755)
    installation.bootstrap()
    for file in installation.data.iterdir():
        assert mode(file) == 0o600, file


KILLED = """
import os, signal, sys
import django; django.setup()
from django.core.management import call_command
from leasehub.management import bootstrap
write = bootstrap.write_private
def die(*given):
    {before}
    os.kill(os.getpid(), signal.SIGKILL)
bootstrap.write_private = die
call_command("bootstrap", url="http://127.0.0.1:1")
"""


@pytest.mark.processes
@pytest.mark.parametrize("before", ["pass", "write(*given)"], ids=["before the file", "between file and commit"])
def test_a_first_run_that_was_killed_leaves_no_half_made_server(installation: Installation, before: str):
    killed = installation.run(sys.executable, "-c", KILLED.format(before=before))
    assert killed.returncode == -signal.SIGKILL
    assert installation.bootstrap()["first_run"]
    assert made(installation) == [1, 1, 1, [1, 2, 3]]


@pytest.mark.processes
def test_of_first_runs_at_once_one_is_the_first(installation: Installation):
    runs = [installation.start(*installation.command("bootstrap", "--url", URL)) for _ in range(4)]
    facts = [json.loads(run.communicate(timeout=120)[0]) for run in runs]
    assert sorted(one["first_run"] for one in facts) == [False, False, False, True]
    assert made(installation) == [1, 1, 1, [1, 2, 3]]


@pytest.mark.processes
def test_a_folder_that_served_another_database_keeps_its_credentials(installation: Installation, tmp_path: Path):
    installation.bootstrap()
    old = installation.credentials
    installation.environment["DATABASE_URL"] = f"sqlite:///{tmp_path}/another.sqlite3"
    assert installation.bootstrap()["first_run"]
    kept = [json.loads(file.read_text()) for file in installation.data.glob("credentials.*.json")]
    assert kept == [old]
    with sqlite3.connect(tmp_path / "another.sqlite3") as another:
        assert another.execute("SELECT count(*) FROM identity_organization").fetchone() == (1,)
    another.close()


def run(url: str = URL) -> dict[str, Any]:
    output = StringIO()
    call_command("bootstrap", url=url, stdout=output)
    facts: dict[str, Any] = json.loads(output.getvalue())
    return facts


def test_a_database_that_has_organizations_is_left_alone(organization: Organization, settings: Any, tmp_path: Path):
    settings.LEASEHUB_DATA = tmp_path
    facts = run()
    assert (facts["first_run"], facts["credentials"], facts["admin_user"]) == (False, None, None)
    assert not (tmp_path / "credentials.json").exists()
    assert (Organization.objects.count(), User.objects.count()) == (1, 0)


def test_credentials_that_are_not_json_are_named(organization: Organization, settings: Any, tmp_path: Path):
    settings.LEASEHUB_DATA = tmp_path
    (tmp_path / "credentials.json").write_text("{")
    with pytest.raises(CommandError, match=r"credentials\.json is not JSON"):
        run()


def test_the_admin_can_sign_in(db: None, tmp_path: Path):
    document = bootstrap.first_run(url=URL, credentials=tmp_path / "credentials.json")
    form = {"username": document["admin_user"], "password": document["admin_password"]}
    assert Client().post("/admin/login/?next=/admin/", form).status_code == 302
    assert User.objects.get().principal.handle == document["principal"]


def test_an_admin_made_before_keeps_the_password(db: None, tmp_path: Path):
    User.objects.create_superuser("admin", password="chosen-by-somebody")
    document = bootstrap.first_run(url=URL, credentials=tmp_path / "credentials.json")
    assert document["admin_password"] is None
    assert User.objects.get().check_password("chosen-by-somebody")


def test_another_organization_has_a_key_of_its_own(agent: Caster, settings: Any, tmp_path: Path):
    settings.LEASEHUB_DATA = tmp_path
    output = StringIO()
    call_command("org_create", "globex", stdout=output)
    printed = json.loads(output.getvalue())
    caller = authenticate(f"Bearer {printed['token']}")
    assert (caller.organization_name, caller.rings) == ("globex", {1, 2, 3})
    assert caller.organization != agent.caller.organization
    keys = ApiKey.objects.count()
    with pytest.raises(CommandError, match="exists already"):
        call_command("org_create", "globex")
    assert ApiKey.objects.count() == keys
