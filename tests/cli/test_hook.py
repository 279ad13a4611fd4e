"""The hooks of coding agents: processes with JSON on stdin, as an agent starts them."""

import json
import socket
import subprocess
import sys
import time

import pytest

from leasehub.cli import guards
from leasehub.cli import hook as hooks
from leasehub.client.failures import Usage
from tests.cli.conftest import CommandLine
from tests.cli.test_start import HEAVY, SCRIPT


@pytest.fixture
def repository(tmp_path, kind):
    """A folder whose schema is guarded: one path has to be acquired for, the other is acquired by the edit."""

    class Repository:
        folder = tmp_path
        resource_type, by_hand, by_itself = "schema", f"{kind}-1", f"{kind}-2"

        def guard(self, *more):
            own = [
                {"paths": ["migrations/**"], "resource": f"schema/{self.by_hand}"},
                {"paths": ["schema.sql", "*.ddl"], "resource": f"schema/{self.by_itself}", "acquire": True},
            ]
            (self.folder / guards.FILE).write_text(json.dumps({"guards": [*own, *more]}))

    repository = Repository()
    repository.guard()
    return repository


def asked(repository, path, *, session="s1", tool="Edit", event="PreToolUse", given=None):
    given = given or {"file_path": str(repository.folder / path), "old_string": "a", "new_string": "b"}
    return {
        "session_id": session,
        "cwd": str(repository.folder),
        "hook_event_name": event,
        "tool_name": tool,
        "tool_input": given,
    }


def hook(who, given, *flags, verb="pre-tool-use", **more):
    text = given if isinstance(given, str) else json.dumps(given)
    outcome = who("hook", verb, *flags, input=text, **more)
    assert outcome.status == 0, outcome.errors
    return outcome.said


def denied(said):
    decision = said["hookSpecificOutput"]
    assert (decision["hookEventName"], decision["permissionDecision"]) == ("PreToolUse", "deny")
    return decision["permissionDecisionReason"]


def hold(who, resource_id, holder):
    outcome = who.start(
        "run", "--resource", f"schema/{resource_id}", "--holder", holder, "--", "cat",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    outcome.stdin.write(b"x")
    outcome.stdin.flush()
    assert outcome.stdout.read(1) == b"x"
    return outcome


def test_an_edit_of_a_guarded_path_is_denied_until_the_session_holds_its_resource(alice, bob, repository):
    given = asked(repository, "migrations/2026/0001.sql")
    reason = denied(hook(alice, given))
    assert f"schema/{repository.by_hand}" in reason
    assert "session-s1" in reason
    with hold(alice, repository.by_hand, "session-s1"):
        assert hook(alice, given) == {}
        reason = denied(hook(alice, asked(repository, "migrations/x", session="s2")))
        assert "held by alice (session-s1) until" in reason
        reason = denied(hook(bob, asked(repository, "migrations/x", session="s1")))
        for recipe in ("force", "release", "reap", "steal"):
            assert recipe not in reason


def test_an_edit_acquires_where_the_file_says_so_and_the_sessions_end_gives_it_back(alice, repository):
    given = asked(repository, "schema.sql")
    assert hook(alice, given) == {}
    status = alice("lease", "status", "--resource", f"schema/{repository.by_itself}").said
    assert (status["state"], status["holder"]) == ("held", "session-s1")
    assert hook(alice, given) == {}
    denied(hook(alice, asked(repository, "x.ddl", session="s2", tool="Write")))
    assert hook(alice, asked(repository, "", event="SessionEnd"), verb="session-end") == {}
    assert alice("lease", "status", "--resource", f"schema/{repository.by_itself}").said["state"] == "free"


def test_what_is_not_guarded_or_only_read_is_not_decided(alice, repository):
    assert hook(alice, asked(repository, "README.md")) == {}
    assert hook(alice, asked(repository, "sub/schema.sql")) == {}
    assert hook(alice, asked(repository, "migrations/x", tool="Read")) == {}
    assert hook(alice, asked(repository, "", tool="Bash", given={"command": "rm -r migrations"})) == {}


@pytest.mark.parametrize(
    ("tool", "given"),
    [
        ("Write", {"file_path": "migrations/a", "content": "*"}),
        ("NotebookEdit", {"notebook_path": "./migrations/../migrations/a.ipynb"}),
        ("MultiEdit", {"file_path": "link/a", "edits": []}),
        ("apply_patch", {"command": "*** Begin Patch\n*** Update File: README\n*** Move to: migrations/a\n"}),
        ("mcp__files__write", {"path": "migrations/a"}),
        ("apply_patch", {"input": "*** Begin Patch\n  ***  Update File:\tmigrations/a  \n"}),
        ("apply_patch", {"input": "*** Begin Patch\r\n*** Add File: README\r\n\t*** Delete File:migrations/a\r\n"}),
        ("apply_patch", "*** Begin Patch\n*** Update File: migrations/a\n"),
        ("shell", {"command": ["apply_patch", "*** Begin Patch\n*** Update File: migrations/a\n"]}),
        ("Write", {"file_path": "elsewhere/../a"}),
        ("Write", {"file_path": "link/../migrations/a"}),
        ("Delete", {"paths": ["README", "migrations/a"]}),
        ("mcp__files__edit_many", {"edits": [{"filePath": "README"}, {"filePath": "migrations/a"}]}),
        ("mcp__files__write", {"uri": "file:///FOLDER/migrations/a"}),
    ],
)
def test_every_way_of_writing_is_guarded(alice, repository, tool, given):
    given = json.loads(json.dumps(given).replace("/FOLDER", str(repository.folder)))
    (repository.folder / "migrations" / "deep").mkdir(parents=True)
    (repository.folder / "elsewhere").symlink_to(repository.folder / "migrations" / "deep")
    (repository.folder / "link").symlink_to(repository.folder / "migrations")
    denied(hook(alice, asked(repository, "", tool=tool, given=given)))


def test_a_file_further_down_adds_guards_and_takes_none_away(alice, repository):
    (repository.folder / "migrations").mkdir()
    (repository.folder / "migrations" / guards.FILE).write_text('{"guards": []}')
    denied(hook(alice, asked(repository, "migrations/a")))


def test_an_agent_that_names_its_events_in_camel_case_is_answered_in_its_own_words(alice, repository):
    given = asked(repository, "migrations/a", event="preToolUse")
    given["conversation_id"] = given.pop("session_id")
    said = hook(alice, given)
    assert said["permission"] == "deny"
    assert "schema/" in said["agent_message"]


@pytest.mark.parametrize(
    ("tool", "given"),
    [
        ("Edit", {"file_path": ""}),
        ("Edit", {"file_path": 5}),
        ("Edit", {"file_path": {"a": 1}}),
        ("Write", {"file_path": "README", "also_paths": [7]}),
        ("MultiEdit", {"edits": []}),
        ("apply_patch", {"input": "--- a/migrations/a\n+++ b/migrations/a\n"}),
        ("Write", None),
        ("Write", "migrations/a"),
        (None, {"whatever": "migrations/a"}),
        (["Edit"], {"new": "migrations/a"}),
        ("Edit", {"file_path": "migrations/\0a"}),
        ("Edit", {"file_path": "x/" * 5000}),
    ],
)
def test_an_edit_that_cannot_be_read_fails_as_it_was_told_to(alice, repository, tool, given):
    asking = {**asked(repository, ""), "tool_name": tool, "tool_input": given}
    assert "systemMessage" in hook(alice, asking)
    denied(hook(alice, asking, "--fail", "closed"))


def test_input_without_an_end_to_it_fails_as_it_was_told_to(alice, repository):
    text = json.dumps(asked(repository, "README", given={"file_path": "README", "content": "x" * hooks.MOST_INPUT}))
    assert "longer than" in denied(hook(alice, text, "--fail", "closed"))


def test_what_cannot_be_read_is_denied_in_the_words_of_the_agent_that_setup_named(alice, repository):
    said = hook(alice, "{", "--fail", "closed", "--agent", "cursor")
    assert (said["permission"], "hookSpecificOutput" in said) == ("deny", False)
    assert hook(alice, "{", "--agent=cursor")["user_message"].startswith("LeaseHub could not be asked")
    assert "additional_context" in hook(alice, "{", "--agent=cursor", verb="session-start")
    denied(hook(alice, "{", "--fail=closed", "--agent=claude"))
    denied(hook(alice, "{", "--fail=closed", "--agent=emacs"))


@pytest.mark.parametrize("stdin", ["", "{", "[]", "null", '{"tool_input": 1}', "\x00" * 10])
def test_bad_stdin_fails_as_it_was_told_to(alice, repository, stdin):
    assert "systemMessage" in hook(alice, stdin)
    assert "systemMessage" in hook(alice, stdin, "--fail", "open")
    denied(hook(alice, stdin, "--fail=closed"))


@pytest.mark.parametrize(
    "file",
    ["{", "[]", '{"guard": []}', '{"guards": [{"paths": [], "resource": "a/b"}]}', '{"guards": [], "holder": "x"}'],
)
def test_a_bad_file_fails_as_it_was_told_to(alice, repository, file):
    (repository.folder / guards.FILE).write_text(file)
    assert guards.FILE in hook(alice, asked(repository, "schema.sql"))["systemMessage"]
    assert guards.FILE in denied(hook(alice, asked(repository, "schema.sql"), "--fail", "closed"))


def test_a_server_that_is_away_fails_as_it_was_told_to(repository):
    nobody = CommandLine(repository.folder, {"LEASEHUB_URL": "http://127.0.0.1:9", "LEASEHUB_TOKEN": "lh_x"})
    assert "systemMessage" in hook(nobody, asked(repository, "schema.sql"))
    denied(hook(nobody, asked(repository, "schema.sql"), "--fail", "closed"))
    # What is guarded by nothing needs no server.
    assert hook(nobody, asked(repository, "README.md"), "--fail", "closed") == {}


def test_without_credentials_it_fails_as_it_was_told_to(repository):
    nobody = CommandLine(repository.folder, {})
    assert "credentials" in hook(nobody, asked(repository, "schema.sql"))["systemMessage"]


@pytest.mark.parametrize(
    "flags", [["--fail", "clsoed"], ["--fail=Closed"], ["--fail"], ["--frobnicate"], ["closed"], ["--agent", "emacs"]]
)
def test_a_mistyped_flag_counts_as_closed_and_is_named(alice, repository, flags):
    reason = denied(hook(alice, asked(repository, "README.md"), *flags))
    assert " ".join(flags) in reason
    assert "--fail open or closed" in reason
    in_camel = hook(alice, asked(repository, "README.md", event="preToolUse"), *flags)
    assert in_camel["permission"] == "deny"
    assert hook(alice, asked(repository, "README.md", tool="Read"), *flags) == {}
    started = hook(alice, asked(repository, "", event="SessionStart"), *flags, verb="session-start")
    assert "--fail open or closed" in started["systemMessage"]


def test_a_hook_has_help_like_every_verb(alice):
    for verb in ("pre-tool-use", "session-start", "session-end"):
        outcome = alice("hook", verb, "--help", stdin=subprocess.DEVNULL)
        assert (outcome.status, outcome.said["code"]) == (0, "help")
        assert f"leasehub hook {verb}" in outcome.errors


def test_a_key_whose_fence_the_session_is_outside_of_fails_as_it_was_told_to(person, repository):
    fenced = person("fenced", "--holder-pattern", "^worker-[0-9]+$")
    assert "systemMessage" in hook(fenced, asked(repository, "schema.sql"))
    denied(hook(fenced, asked(repository, "schema.sql"), "--fail", "closed"))


def test_a_server_that_hangs_is_not_waited_for_longer_than_the_budget(repository):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        who = CommandLine(repository.folder, {"LEASEHUB_URL": url, "LEASEHUB_TOKEN": "lh_x"})
        began = time.monotonic()
        denied(hook(who, asked(repository, "schema.sql"), "--fail", "closed"))
        # The budget is 1.5 s; the rest is for a busy machine.
        assert time.monotonic() - began < 8


def test_stdin_that_does_not_end_is_not_waited_for(alice, repository):
    process = alice.start("hook", "pre-tool-use", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert "systemMessage" in json.loads(process.stdout.read())
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


def test_two_sessions_are_never_one_holder(alice, repository):
    """What a holder cannot have is replaced, and what is too long is cut."""
    for one, other in (("a/b", "a b"), ("x" * 200 + "1", "x" * 200 + "2")):
        assert hook(alice, asked(repository, "schema.sql", session=one)) == {}
        assert hook(alice, asked(repository, "schema.sql", session=one)) == {}
        denied(hook(alice, asked(repository, "schema.sql", session=other)))
        hook(alice, asked(repository, "", session=one, event="SessionEnd"), verb="session-end")


def test_a_session_is_told_who_it_is_and_what_is_guarded(alice, bob, repository, tmp_path):
    alice("handoff", "send", "--to", "bob", "--subject", "x")
    environment = {"CLAUDE_ENV_FILE": str(tmp_path / "env")}
    said = hook(bob, asked(repository, "", event="SessionStart"), verb="session-start", environment=environment)
    context = said["hookSpecificOutput"]["additionalContext"]
    assert said["hookSpecificOutput"]["hookEventName"] == "SessionStart"
    for part in ("migrations/**", f"schema/{repository.by_itself}", "session-s1", "handed over to you"):
        assert part in context
    assert (tmp_path / "env").read_text() == "export LEASE_OWNER='session-s1'\n"


def test_the_doctor_proves_that_it_blocks(alice, repository):
    settings = repository.folder / ".claude"
    settings.mkdir()
    outcome = alice("hook", "doctor", cwd=repository.folder)
    checks = {check["check"]: check for check in outcome.said["checks"]}
    assert checks["blocks"]["ok"], checks
    assert checks["guards"]["ok"]
    assert not checks["configured"]["ok"]
    assert (outcome.status, outcome.said["code"]) == (1, "does_not_block")
    assert alice("setup", "claude", "--write", cwd=repository.folder).status == 0
    outcome = alice("hook", "doctor", cwd=repository.folder)
    checks = {check["check"]: check["ok"] for check in outcome.said["checks"]}
    assert checks["configured"]
    below = repository.folder / "below" / "that"
    below.mkdir(parents=True)
    checks = {check["check"]: check["ok"] for check in alice("hook", "doctor", cwd=below).said["checks"]}
    assert checks["configured"] and checks["guards"] and checks["blocks"]


@pytest.mark.parametrize(
    ("guard", "said"),
    [
        ({"paths": ["/migrations/**"], "resource": "schema/x"}, "/migrations/**"),
        ({"paths": ["a"], "resource": "slot/x", "acquire": True}, "reserved"),
        ({"paths": ["a"], "resource": "schema/x", "acquire": True, "ttl_seconds": 1_000_000}, "ttl_seconds"),
        ({"paths": ["a"], "resource": "schema/" + "x" * 300}, "resource_id"),
    ],
)
def test_the_doctor_says_which_guard_does_not_guard(alice, repository, guard, said):
    repository.guard(guard)
    outcome = alice("hook", "doctor", cwd=repository.folder)
    checks = {check["check"]: check for check in outcome.said["checks"]}
    assert not checks["blocks"]["ok"]
    assert said in checks["blocks"]["detail"]


def test_the_hook_imports_nothing_heavy(alice, repository):
    script = SCRIPT.format(root=str(CommandLine(repository.folder, {}).environment["PYTHONPATH"]))
    # It ends at once, so what it has imported is looked at just before.
    script = script.replace("status = main", "import os; end = os._exit; os._exit = sys.exit\nstatus = main")
    script = script.replace(
        "status = main(sys.argv[1:])\n", "try: main(sys.argv[1:])\nexcept SystemExit as over: status = over.code\n"
    )
    ran = subprocess.run(
        [sys.executable, "-E", "-S", "-c", script, "hook", "pre-tool-use"],
        input=json.dumps(asked(repository, "schema.sql")),
        env=alice.environment,
        cwd=repository.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, json.loads(ran.stdout)) == (0, {}), ran.stderr
    assert set(ran.stderr.rpartition("modules:")[2].split()) & HEAVY == set()


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("a", "a", True),
        ("a", "b/a", False),
        ("**/a", "a", True),
        ("**/a", "b/c/a", True),
        ("a/**", "a/b/c", True),
        ("a/**", "ab/c", False),
        ("a/", "a/b", True),
        ("./a/*.sql", "a/x.sql", True),
        ("a/*.sql", "a/b/x.sql", False),
        ("a/**/z", "a/z", True),
        ("a/**/z", "a/b/c/z", True),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("*a*b*", "xxaxxbxx", True),
        ("*a*b*", "xxbxxaxx", False),
        ("**/**/**/x", "a/b/c/d/e/x", True),
        ("a/**/**/z/**", "a/b/z", True),
        ("a/**/**/z/**", "a/b/y", False),
        ("*a?c*", "xabxabcx", True),
        ("a*a", "a", False),
        ("*ab*ab", "abab", True),
        ("*ab*ab", "ab", False),
        ("**/" * 40 + "z", "a/" * 200 + "y", False),
        ("*a" * 40 + "b", "a" * 4000, False),
    ],
)
def test_patterns(pattern, path, fits):
    guard = guards.Guard({"paths": [pattern], "resource": "a/b"}, "here")
    assert guard.covers(path) is fits


def test_on_a_file_system_that_folds_the_case_of_names_a_pattern_does_too(repository, monkeypatch):
    path = str(repository.folder / "Migrations" / "a")
    assert guards.guarding(path, "/") == []
    file = str(repository.folder / guards.FILE)
    exists = guards.os.path.exists
    monkeypatch.setattr(guards.os.path, "exists", lambda name: exists(name) or name.casefold() == file.casefold())
    assert len(guards.guarding(path, "/")) == 1


@pytest.mark.parametrize(
    "pattern", ["/a", "~/a", "../a", "a/../b", "./../a", "!a", "a/[bc].sql", "a//b", "a/./b", "./", "a\\b", "."]
)
def test_a_pattern_that_fits_nothing_is_refused(pattern):
    with pytest.raises(Usage, match="pattern"):
        guards.Guard({"paths": ["a", pattern], "resource": "a/b"}, "here")


@pytest.mark.parametrize("pattern", ["a", "**", "a/**/b?.*", "./x/", "**/*.sql"])
def test_an_example_fits_its_pattern(pattern):
    assert guards.Guard({"paths": [pattern], "resource": "a/b"}, "here").covers(guards.example(pattern))


@pytest.mark.parametrize(
    "given",
    [
        {"paths": ["a"], "resource": "task/b", "acquire": True},
        {"paths": ["a"], "resource": "ab"},
        {"paths": ["a"], "resource": "a/b", "acquire": 1},
        {"paths": ["a"], "resource": "a/b", "ttl_seconds": True},
        {"paths": "a", "resource": "a/b"},
        {"paths": ["a"], "resource": "a/b", "aquire": True},
    ],
)
def test_a_guard_that_says_something_else_is_refused(given):
    with pytest.raises(Usage, match="here"):
        guards.Guard(given, "here")
