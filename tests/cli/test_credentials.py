"""Where the command line looks for its server and its key."""

import json

import pytest

from tests.cli.conftest import CommandLine


@pytest.fixture
def nobody(tmp_path):
    return CommandLine(tmp_path, {})


def write(file, server, *, token="lh_alice", **more):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"url": server.url, "token": token, **more}))
    return file


def who(command_line, **more):
    outcome = command_line("whoami", **more)
    assert outcome.status == 0, outcome.errors
    return outcome.said


def test_the_places_in_their_order(fake, nobody, tmp_path):
    fake.leases.principals.update({"lh_own": "own", "lh_near": "near", "lh_data": "data", "lh_named": "named"})
    in_data = {"LEASEHUB_DATA": str(tmp_path / "data")}
    write(tmp_path / "data" / "credentials.json", fake, token="lh_data")
    assert who(nobody, environment=in_data)["principal"] == "data"
    own = write(tmp_path / ".config" / "leasehub" / "credentials.json", fake, token="lh_own")
    assert who(nobody, environment=in_data)["principal"] == "own"
    assert who(nobody)["principal"] == "own"
    assert who(nobody)["credentials"] == str(own)
    write(tmp_path / ".leasehub" / "credentials.json", fake, token="lh_near")
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert who(nobody, cwd=below)["principal"] == "near"
    named = write(tmp_path / "named.json", fake, token="lh_named")
    assert who(nobody, environment={**in_data, "LEASEHUB_CREDENTIALS": str(named)})["principal"] == "named"
    assert who(nobody, environment=fake.environment("bob", LEASEHUB_CREDENTIALS=str(named)))["principal"] == "bob"


def test_none_at_all_is_a_usage_error_that_says_what_to_do(nobody):
    outcome = nobody("lease", "status", "--kind", "k")
    assert outcome.status == 2
    assert "LEASEHUB_TOKEN" in outcome.said["message"]
    assert "leasehub up" in outcome.said["message"]


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "{}",
        '{"url": "http://x"}',
        '{"url": 1, "token": "t"}',
        "\udcff",
        '{"url":"http://x","token":"a\\nb"}',
    ],
)
def test_a_file_that_is_there_but_wrong_is_never_skipped(fake, nobody, tmp_path, content):
    write(tmp_path / ".config" / "leasehub" / "credentials.json", fake)
    file = tmp_path / ".leasehub" / "credentials.json"
    file.parent.mkdir()
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    outcome = nobody("whoami")
    assert outcome.status == 2
    assert str(file) in outcome.said["message"]


def test_a_folder_in_its_place_or_a_missing_named_file_is_an_error(nobody, tmp_path):
    (tmp_path / ".leasehub" / "credentials.json").mkdir(parents=True)
    assert nobody("whoami").status == 2
    outcome = nobody("whoami", environment={"LEASEHUB_CREDENTIALS": "/nonexistent/file"})
    assert outcome.status == 2
    assert "/nonexistent/file" in outcome.said["message"]


def test_a_token_goes_to_no_other_server_than_its_own(fake, nobody, tmp_path):
    file = write(tmp_path / ".leasehub" / "credentials.json", fake)
    outcome = nobody("whoami", environment={"LEASEHUB_URL": "http://127.0.0.1:9"})
    assert outcome.status == 2
    assert str(file) in outcome.said["message"]
    assert who(nobody, environment={"LEASEHUB_URL": fake.url})["principal"] == "alice"
    assert nobody("whoami", environment={"LEASEHUB_TOKEN": "lh_alice"}).status == 2
    assert len(fake.seen) == 1


def test_the_files_principal_is_the_owner_without_asking(fake, nobody, tmp_path):
    write(tmp_path / ".leasehub" / "credentials.json", fake, principal="alice")
    nobody("lease", "acquire", "--kind", "k", "--ttl", "5")
    assert [seen[:2] for seen in fake.seen] == [("POST", "/v1/leases")]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:1",
        "ftp://x",
        "http://",
        "http://a b",
        "http://u:p@h",
        "http://h:0",
        "http://h:99999",
        "http://h/?q",
    ],
)
def test_an_address_that_is_none(nobody, url):
    outcome = nobody("whoami", environment={"LEASEHUB_URL": url, "LEASEHUB_TOKEN": "lh_x"})
    assert outcome.status == 2
