"""The examples of docs/examples, executed."""

import os
import subprocess
import sys

import pytest

from tests.cli.conftest import ROOT

EXAMPLES = ROOT / "docs" / "examples"
SHIM = f"""#!/bin/sh
exec {sys.executable} -P -c 'import sys; from leasehub.cli import main; sys.exit(main())' "$@"
"""


@pytest.fixture
def shell(tmp_path):
    """Runs a command as somebody, with `leasehub` on the PATH."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "leasehub").write_text(SHIM)
    (programs / "leasehub").chmod(0o755)
    (programs / "python3").symlink_to(sys.executable)

    def run(who, *command, cwd=tmp_path, **environment):
        path = f"{programs}:{os.environ['PATH']}"
        identity = {f"GIT_{role}_{what}": "x@y" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        return subprocess.run(
            command,
            cwd=cwd,
            env={**who.environment, "PATH": path, **identity, **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


@pytest.fixture
def clones(shell, alice, tmp_path, kind):
    """Two clones of one repository, each with the hook."""
    shell(alice, "git", "init", "--bare", "-b", "main", f"{kind}.git")
    for name in ("one", "two"):
        shell(alice, "git", "clone", f"{kind}.git", name)
        (tmp_path / name / ".git" / "hooks" / "pre-push").symlink_to(EXAMPLES / "pre-push")
    shell(alice, "git", "commit", "--allow-empty", "-m", "first", cwd=tmp_path / "one")
    return tmp_path / "one", tmp_path / "two"


def test_of_two_clones_that_push_one_is_refused(shell, alice, bob, clones):
    one, two = clones
    pushed = shell(alice, "git", "push", "origin", "HEAD:main", cwd=one)
    assert pushed.returncode == 0, pushed.stderr
    shell(alice, "git", "commit", "--allow-empty", "-m", "second", cwd=one)
    assert shell(alice, "git", "push", "origin", "HEAD:main", cwd=one).returncode == 0
    for who in (bob, alice):
        shell(who, "git", "fetch", cwd=two)
        shell(who, "git", "checkout", "-B", "main", "origin/main", cwd=two)
        shell(who, "git", "commit", "--allow-empty", "-m", "third", cwd=two)
        refused = shell(who, "git", "push", "origin", "main", cwd=two)
        assert refused.returncode != 0
        assert "somebody else is pushing to main" in refused.stderr
    assert shell(bob, "git", "push", "origin", "HEAD:topic", cwd=two).returncode == 0


def test_a_repository_is_known_by_its_path_and_not_by_its_last_name_alone(shell, alice, bob, clones, kind):
    def push(who, clone, url):
        lines = "refs/heads/main 1 refs/heads/main 0"
        return shell(who, "sh", "-c", f"echo {lines} | {EXAMPLES / 'pre-push'} origin {url}", cwd=clone).returncode

    one, two = clones
    assert push(alice, one, f"git@host:team/{kind}.git") == 0
    for same in (f"https://host/team/{kind}", f"ssh://me@host:22/team/{kind}.git/"):
        assert push(bob, two, same) != 0
    for another in (f"git@host:other/{kind}.git", f"https://host/team-{kind}", f"/srv/{kind}.git"):
        assert push(bob, two, another) == 0


@pytest.mark.parametrize(("fail", "refused"), [("open", False), ("closed", True)])
def test_without_a_server_the_push_goes_as_it_was_told_to(shell, alice, clones, fail, refused):
    away = {"LEASEHUB_URL": "http://127.0.0.1:9", "LEASEHUB_FAIL": fail}
    pushed = shell(alice, "git", "push", "origin", "HEAD:main", cwd=clones[0], **away)
    assert (pushed.returncode != 0) is refused
    assert "could not be asked" in pushed.stderr


def test_a_job_deploys_under_its_lease_and_gives_it_back(shell, alice, kind, tmp_path):
    job = {"RESOURCE": f"deploy/{kind}", "BUILD": "echo building", "DEPLOY": 'echo "with $LEASEHUB_FENCING_TOKEN"'}
    ran = shell(alice, str(EXAMPLES / "ci.sh"), **job)
    assert ran.returncode == 0, ran.stderr
    first, second = ran.stdout.splitlines()
    assert first == "building"
    assert int(second.removeprefix("with ")) > 0
    assert alice("lease", "status", "--resource", f"deploy/{kind}").said["state"] == "free"


def test_a_job_whose_token_is_not_the_newest_does_not_deploy(shell, alice, kind):
    stale = {
        "BUILD": "true",
        "DEPLOY": "echo deployed",
        "LEASEHUB_RESOURCE_TYPE": "deploy",
        "LEASEHUB_RESOURCE_ID": kind,
        "LEASEHUB_FENCING_TOKEN": "1",
    }
    ran = shell(alice, str(EXAMPLES / "ci.sh"), "--holding", **stale)
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert "another deployment is under way" in ran.stderr


def test_a_job_waits_no_longer_than_it_may(shell, alice, kind):
    job = {"RESOURCE": f"deploy/{kind}", "BUILD": "true", "DEPLOY": "true", "WAIT": "0"}
    inner = f'WAIT=0 {EXAMPLES / "ci.sh"}; echo "exit $?"'
    ran = shell(alice, str(EXAMPLES / "ci.sh"), **{**job, "BUILD": inner})
    assert "exit 1" in ran.stdout


def test_a_build_that_fails_deploys_nothing(shell, alice, kind):
    job = {"RESOURCE": f"deploy/{kind}", "BUILD": "exit 7", "DEPLOY": "echo deployed"}
    ran = shell(alice, str(EXAMPLES / "ci.sh"), **job)
    assert (ran.returncode, ran.stdout) == (7, "")


def test_two_agents_at_mcp_hand_a_task_on_with_its_lease(alice, bob, kind):
    ran = subprocess.run(
        [sys.executable, EXAMPLES / "mcp_session.py"],
        env={
            "LEASEHUB_URL": alice.environment["LEASEHUB_URL"],
            "FIRST_TOKEN": alice.environment["LEASEHUB_TOKEN"],
            "SECOND_TOKEN": bob.environment["LEASEHUB_TOKEN"],
            "QUEUE": kind,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    said = ran.stdout.splitlines()
    tokens = [int(line.rpartition(" ")[2]) for line in said if " with token " in line]
    assert tokens == sorted(set(tokens))
    assert "the other side is told: alice offers you pull-request-7" in ran.stdout
    assert "the giver is told: bob accepted pull-request-7" in ran.stdout
    assert "the task is done" in said
    assert "the giver is told: bob completed pull-request-7" in ran.stdout
