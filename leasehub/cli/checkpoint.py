"""leasehub checkpoint save|get."""

import os

from leasehub.cli import flags
from leasehub.cli.output import emit
from leasehub.cli.task import connection, json_of
from leasehub.client.failures import Usage
from leasehub.client.wire import fresh_key, quoted

# More than any server takes.
MAX_STATE = 1024 * 1024
WHICHEVER = "any"


def save(arguments: list[str]) -> int:
    given = flags.read(
        "checkpoint save",
        arguments,
        values=("subject", "kind", "state", "expected-version", "ttl-seconds", "run-id", "fence", "token"),
        switches=("pretty",),
    )
    given.required("subject", "kind", "state")
    body: dict[str, object] = {
        "subject_id": given["subject"],
        "kind": given["kind"],
        "state": json_of("state", _read_stdin() if given["state"] == "-" else given["state"]),
    }
    if "expected-version" in given:
        text = given["expected-version"]
        body["expected_version"] = None if text == WHICHEVER else flags.whole("expected-version", text)
    if "ttl-seconds" in given:
        body["ttl_seconds"] = flags.whole("ttl-seconds", given["ttl-seconds"], least=1)
    if "run-id" in given:
        body["run_id"] = given["run-id"]
    if "fence" in given or "token" in given:
        body["fence"] = _fence(given)
    saved = connection().call("POST", "/v1/checkpoints", body, key=fresh_key())
    return emit({"ok": True, "code": "saved", **saved}, pretty="pretty" in given)


def _fence(given: flags.Flags) -> dict[str, object]:
    given.required("fence", "token")
    resource_type, _, resource_id = given["fence"].partition("/")
    if not resource_type or not resource_id:
        raise Usage(f"--fence must look like TYPE/ID, not {given['fence']!r}")
    token = flags.whole("token", given["token"])
    return {"resource_type": resource_type, "resource_id": resource_id, "fencing_token": token}


def _read_stdin() -> str:
    content = b""
    while len(content) <= MAX_STATE and (received := os.read(0, 65536)):
        content += received
    return content.decode("utf-8", "surrogateescape")


def get(arguments: list[str]) -> int:
    given = flags.read(
        "checkpoint get", arguments, values=("subject", "kind", "checkpoint", "version"), switches=("pretty",)
    )
    query = []
    if "version" in given:
        query.append(f"version={flags.whole('version', given['version'], least=1)}")
    if given.get("checkpoint"):
        if "subject" in given or "kind" in given:
            raise Usage("checkpoint get takes --checkpoint, or --subject and --kind")
        path = f"/v1/checkpoints/{quoted(given['checkpoint'])}"
    else:
        given.required("subject", "kind")
        path = "/v1/checkpoints"
        query += [f"subject_id={quoted(given['subject'])}", f"kind={quoted(given['kind'])}"]
    shown = connection().call("GET", f"{path}?{'&'.join(query)}" if query else path)
    return emit({"ok": True, "code": "shown", **shown}, pretty="pretty" in given)
