"""leasehub explain: why one waits, why one was refused, who ended one's lease."""

from leasehub.cli import flags
from leasehub.cli.output import emit, tell
from leasehub.cli.task import connection
from leasehub.client.failures import Usage
from leasehub.client.wire import quoted


def explain(arguments: list[str]) -> int:
    given = flags.read("explain", arguments, values=("resource", "request"), switches=("pretty",))
    if ("resource" in given) == ("request" in given):
        raise Usage("explain needs --resource TYPE/ID or --request ID")
    if "request" in given:
        path = f"/v1/explain/requests/{quoted(given['request'])}"
    else:
        resource_type, slash, resource_id = given["resource"].partition("/")
        if not (resource_type and slash and resource_id):
            raise Usage("--resource must be TYPE/ID")
        path = f"/v1/explain?resource_type={quoted(resource_type)}&resource_id={quoted(resource_id)}"
    answer = connection().call("GET", path)
    tell(str(answer["explanation"]))
    return emit({"ok": True, "code": "explained", **answer}, pretty="pretty" in given)
