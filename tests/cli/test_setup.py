"""The configuration of agents: merged into what is there, without a secret, the same however often."""

import json
import tomllib

import pytest

from tests.cli.conftest import CommandLine

TOKEN = "lh_abcdefgh_0123456789012345678901234567890123456789012"


@pytest.fixture
def here(tmp_path):
    return CommandLine(tmp_path, {"LEASEHUB_URL": "http://hub:8787", "LEASEHUB_TOKEN": TOKEN})


def read(here, file):
    return (here.folder / file).read_text()


@pytest.mark.parametrize("agent", ["claude", "codex", "cursor"])
@pytest.mark.parametrize("transport", ["http", "stdio"])
def test_it_is_printed_and_written_the_same_and_only_once(here, agent, transport):
    printed = here("setup", agent, "--transport", transport)
    assert printed.status == 0, printed.errors
    assert not any(path.is_file() for path in here.folder.rglob("*"))
    written = here("setup", agent, "--transport", transport, "--write")
    assert [file["state"] for file in written.said["files"]] == ["new", "new"]
    assert TOKEN not in printed.text + printed.errors + written.text + written.errors
    for file in printed.said["files"]:
        assert read(here, file["file"]) == file["content"]
        assert TOKEN not in file["content"]
    again = here("setup", agent, "--transport", transport, "--write")
    assert [file["state"] for file in again.said["files"]] == ["unchanged", "unchanged"]


def test_claude(here):
    here("setup", "claude", "--write", "--fail", "closed")
    server = json.loads(read(here, ".mcp.json"))["mcpServers"]["leasehub"]
    assert server == {
        "type": "http",
        "url": "http://hub:8787/mcp",
        "headers": {"Authorization": "Bearer ${LEASEHUB_TOKEN}"},
    }
    hooks = json.loads(read(here, ".claude/settings.json"))["hooks"]
    assert hooks["PreToolUse"][0]["matcher"] == "Edit|Write|MultiEdit|NotebookEdit"
    assert hooks["PreToolUse"][0]["hooks"][0]["command"] == "leasehub hook pre-tool-use --fail closed"
    assert set(hooks) == {"PreToolUse", "SessionStart", "SessionEnd"}


def test_codex_takes_the_key_from_the_environment(here):
    here("setup", "codex", "--write")
    server = tomllib.loads(read(here, ".codex/config.toml"))["mcp_servers"]["leasehub"]
    assert server == {"url": "http://hub:8787/mcp", "bearer_token_env_var": "LEASEHUB_TOKEN"}


def test_what_is_there_stays_and_what_is_ours_is_renewed(here):
    (here.folder / ".claude").mkdir()
    settings = {
        "permissions": {"allow": ["Bash(ls:*)"]},
        "hooks": {
            "PreToolUse": [
                {"matcher": "Bash", "hooks": [{"type": "command", "command": "check ü"}]},
                {"matcher": "Edit", "hooks": [{"type": "command", "command": "leasehub hook pre-tool-use"}]},
            ],
            "Stop": [{"hooks": [{"type": "command", "command": "bell"}]}],
        },
    }
    (here.folder / ".claude/settings.json").write_text(json.dumps(settings))
    there = {"command": "leasehub", "args": ["mcp-stdio"], "timeout": 7}
    (here.folder / ".mcp.json").write_text(json.dumps({"mcpServers": {"other": {"command": "x"}, "leasehub": there}}))
    here("setup", "claude", "--write", "--fail", "closed")
    written = json.loads(read(here, ".claude/settings.json"))
    assert written["permissions"] == settings["permissions"]
    assert written["hooks"]["Stop"] == settings["hooks"]["Stop"]
    assert written["hooks"]["PreToolUse"][0] == settings["hooks"]["PreToolUse"][0]
    assert len(written["hooks"]["PreToolUse"]) == 2
    [ours] = written["hooks"]["PreToolUse"][1]["hooks"]
    assert ours["command"] == "leasehub hook pre-tool-use --fail closed"
    servers = json.loads(read(here, ".mcp.json"))["mcpServers"]
    assert servers["other"] == {"command": "x"}
    assert servers["leasehub"]["timeout"] == 7
    assert "command" not in servers["leasehub"]


def test_toml_is_added_to_with_its_comments(here):
    (here.folder / ".codex").mkdir()
    before = '# mine\nmodel = "x" # yes\n\n[mcp_servers.other]\ncommand = "y"\n'
    (here.folder / ".codex/config.toml").write_text(before)
    here("setup", "codex", "--write")
    assert read(here, ".codex/config.toml").startswith(before)
    assert tomllib.loads(read(here, ".codex/config.toml"))["mcp_servers"].keys() == {"other", "leasehub"}


@pytest.mark.parametrize(
    ("agent", "file", "content"),
    [
        ("claude", ".mcp.json", '{"mcpServers": {}, // a comment\n}'),
        ("claude", ".mcp.json", "[]"),
        ("claude", ".mcp.json", '{"mcpServers": []}'),
        ("claude", ".claude/settings.json", '{"hooks": {"PreToolUse": {}}}'),
        ("claude", ".mcp.json", '{"mcpServers": {"leasehub": {"command": "other", "args": ["serve"]}}}'),
        ("claude", ".mcp.json", '{"mcpServers": {"leasehub": {"type": "http", "url": "https://other/mcp"}}}'),
        ("claude", ".mcp.json", '{"mcpServers": {"leasehub": "x"}}'),
        ("cursor", ".cursor/mcp.json", '{"mcpServers": {"leasehub": {"url": "https://other/sse", "headers": {}}}}'),
        ("codex", ".codex/config.toml", '[mcp_servers.leasehub]\ncommand = "other"\n'),
        ("codex", ".codex/config.toml", "model ="),
        ("codex", ".codex/config.toml", "mcp_servers = {}\n"),
        ("codex", ".codex/config.toml", '[mcp_servers.leasehub]\nurl = "http://elsewhere/mcp"\n'),
        ("cursor", ".cursor/hooks.json", '{"hooks": 1}'),
    ],
)
def test_what_cannot_be_merged_is_left_alone_and_nothing_else_is_written(here, agent, file, content):
    (here.folder / file).parent.mkdir(exist_ok=True)
    (here.folder / file).write_text(content)
    outcome = here("setup", agent, "--write")
    assert (outcome.status, outcome.said["code"]) == (2, "usage")
    assert read(here, file) == content
    assert [path for path in here.folder.rglob("*") if path.is_file()] == [here.folder / file]


def test_a_secret_is_never_written(here):
    outcome = here("setup", "claude", "--write", "--url", f"http://hub/{TOKEN}")
    assert outcome.status == 2
    assert not (here.folder / ".mcp.json").exists()
    (here.folder / ".mcp.json").write_text(json.dumps({"mcpServers": {"x": {"env": {"KEY": TOKEN}}}}))
    assert here("setup", "claude", "--write").status == 2
    assert TOKEN not in outcome.text


def test_a_server_that_was_entered_by_hand_is_taken_over(here):
    (here.folder / ".cursor").mkdir()
    there = {"mcpServers": {"leasehub": {"url": "http://hub:8787/mcp"}}}
    (here.folder / ".cursor/mcp.json").write_text(json.dumps(there))
    assert here("setup", "cursor", "--write").status == 0
    assert "${env:LEASEHUB_TOKEN}" in read(here, ".cursor/mcp.json")


def test_a_key_that_was_in_the_file_gives_way_to_the_environment(here):
    there = {"type": "http", "url": "http://hub:8787/mcp", "headers": {"Authorization": f"Bearer {TOKEN}"}}
    (here.folder / ".mcp.json").write_text(json.dumps({"mcpServers": {"leasehub": there}}))
    assert here("setup", "claude", "--write").status == 0
    assert TOKEN not in read(here, ".mcp.json")


def test_a_link_is_written_through_and_the_mode_is_kept(here, tmp_path):
    place = tmp_path / "elsewhere.json"
    place.write_text("{}")
    place.chmod(0o600)
    (here.folder / ".mcp.json").symlink_to(place)
    here("setup", "claude", "--write")
    assert (here.folder / ".mcp.json").is_symlink()
    assert "leasehub" in place.read_text()
    assert place.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("arguments", [[], ["emacs"], ["claude", "codex"], ["claude", "--transport", "smoke"]])
def test_a_wrong_command_line_is_usage(here, arguments):
    assert here("setup", *arguments).status == 2


@pytest.mark.parametrize("agent", ["claude", "codex", "cursor"])
def test_that_an_unanswered_edit_is_denied_stays_until_it_is_taken_back(here, agent):
    def commands():
        file = {"claude": ".claude/settings.json"}.get(agent, f".{agent}/hooks.json")
        return read(here, file).count("--fail closed"), read(here, file).count("--fail open")

    here("setup", agent, "--write", "--fail", "closed")
    assert [file["state"] for file in here("setup", agent, "--write").said["files"]] == ["unchanged"] * 2
    assert commands() == (1, 0)
    here("setup", agent, "--write", "--fail", "open")
    assert commands() == (0, 1)


def test_cursors_hooks_say_whose_they_are(here):
    here("setup", "cursor", "--write")
    hooks = json.loads(read(here, ".cursor/hooks.json"))["hooks"]
    assert hooks["preToolUse"][0]["command"] == "leasehub hook pre-tool-use --agent cursor --fail open"
    assert hooks["sessionEnd"][0]["command"] == "leasehub hook session-end --agent cursor"


@pytest.mark.parametrize("transport", ["http", "stdio"])
def test_an_entry_of_codex_that_is_ours_is_changed_with_what_was_added_to_it(here, transport):
    here("setup", "codex", "--write", "--url", "http://before:1")
    file = here.folder / ".codex/config.toml"
    file.write_text("# mine\n" + file.read_text() + "startup_timeout_sec = 9 # slow\n\n[other]\nurl = 1\n")
    changed = here("setup", "codex", "--write", "--transport", transport)
    assert (changed.status, changed.said["files"][0]["state"]) == (0, "changed"), changed.errors
    text = file.read_text()
    assert text.startswith("# mine\n")
    assert "# slow" in text
    found = tomllib.loads(text)
    assert found["other"] == {"url": 1}
    server = found["mcp_servers"]["leasehub"]
    assert server.pop("startup_timeout_sec") == 9
    if transport == "http":
        assert server == {"url": "http://hub:8787/mcp", "bearer_token_env_var": "LEASEHUB_TOKEN"}
    else:
        assert server == {
            "command": "leasehub",
            "args": ["mcp-stdio"],
            "env_vars": ["LEASEHUB_URL", "LEASEHUB_TOKEN"],
        }


@pytest.mark.parametrize("url", ["http://me:secret@hub:8787", "https://me@hub", "hub:8787", "ftp://hub"])
def test_an_address_with_a_password_or_none_at_all_is_not_written(here, url):
    outcome = here("setup", "claude", "--write", "--url", url)
    assert (outcome.status, outcome.said["code"]) == (2, "usage")
    assert "secret" not in outcome.text + outcome.errors
    assert not (here.folder / ".mcp.json").exists()


def test_it_says_what_to_paste(here):
    outcome = here("setup", "claude")
    assert "export LEASEHUB_URL=http://hub:8787 LEASEHUB_TOKEN=" in outcome.errors
    [line] = [line for line in outcome.errors.splitlines() if line.startswith('{"guards"')]
    (here.folder / ".leasehub.json").write_text(line)
    assert "nothing is guarded yet" not in here("setup", "claude").errors
