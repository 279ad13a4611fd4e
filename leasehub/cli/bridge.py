"""leasehub mcp-stdio: MCP for hosts that can only start a process. Lines of JSON-RPC go to the server's /mcp and back.

It keeps no state but the holder of this process, so it survives restarts of the server: what is asked meanwhile is
answered in band. It never prints the key.
"""

import http.client
import json
import os
import re
import select
import ssl
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from leasehub.cli import flags
from leasehub.cli.output import say
from leasehub.client import credentials
from leasehub.client.failures import Failure, Usage
from leasehub.client.holder import MAX_HOLDER, own_holder
from leasehub.client.wire import Connection

MAX_LINE = 2 * 1024 * 1024
#: The longest wait of a tool, and some.
TIMEOUT_SECONDS = 60.0
#: How long a server that is not there is waited for: about as long as a restart takes.
PATIENCE_SECONDS = 2.0
CALLS_AT_ONCE = 8
PROTOCOL_VERSION = "io.modelcontextprotocol/protocolVersion"
PARSE_ERROR, INVALID_REQUEST, INTERNAL_ERROR = -32700, -32600, -32603
#: Refused by the server itself, outside of MCP.
REFUSED = -32000
NO_HOLDER = {
    "code": "VALIDATION_ERROR",
    "message": "--holder or LEASEHUB_HOLDER is no holder's name.",
    "hint": "Start this process again with another holder, or without one.",
    "fields": {"holder": "is not a holder's name"},
}


class Gone(Exception):
    """No answer could be had. ``sent``: the call may have been carried out."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


def serve(arguments: list[str]) -> int:
    given = flags.read("mcp-stdio", arguments, values=("holder",))
    known = credentials.find()
    holder = given.get("holder") or os.environ.get("LEASEHUB_HOLDER") or None
    # It goes into a header. Whether it is within the key's fence is the server's to say.
    if holder is not None and not (holder.strip() == holder and holder.isascii() and holder.isprintable()):
        raise Usage(f"a holder is one line of ASCII, without blanks around it, not {holder!r}")
    if holder is not None and len(holder) > MAX_HOLDER:
        raise Usage(f"a holder has at most {MAX_HOLDER} characters, not {len(holder)}")
    Bridge(known, holder).run()
    return 0


class Bridge:
    def __init__(self, known: credentials.Credentials, holder: str | None) -> None:
        self._known = known
        self._holder = holder
        address = urlsplit(known.url)
        self._secure = address.scheme == "https"
        self._host = address.netloc
        self._path = f"{address.path.rstrip('/')}/mcp"
        self._context = ssl.create_default_context() if self._secure else None
        self._connections = threading.local()
        self._naming = threading.Lock()
        self._writing = threading.Lock()

    def run(self) -> None:
        """Until the host closes stdin; answers what was asked before, then ends."""
        with ThreadPoolExecutor(CALLS_AT_ONCE) as calls:
            while line := sys.stdin.buffer.readline(MAX_LINE):
                if line.strip():
                    calls.submit(self._answer, line)

    def _answer(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            self._write(_error(None, PARSE_ERROR, "Invalid JSON"))
            return
        if not isinstance(message, dict):
            self._write(_error(None, INVALID_REQUEST, "One JSON-RPC message a line, without batches"))
            return
        try:
            answer = self._forwarded(message, line)
        except Gone as gone:
            answer = _unreachable(message, str(gone), sent=gone.sent)
        except Exception as fault:
            # The host must not wait for ever for an answer that never comes.
            say(f"{type(fault).__name__}: {fault}")
            answer = _error(message.get("id"), INTERNAL_ERROR, "The bridge failed")
        if answer and "id" in message:
            self._write(answer)

    def _forwarded(self, message: dict[str, Any], line: bytes) -> bytes:
        if self._holder is not None and not _can_be_sent(self._holder):
            return _told(message, REFUSED, NO_HOLDER)
        status, content = self._posted(line.strip(), self._headers(message))
        try:
            document = json.loads(content) if content else None
        except ValueError:
            raise Gone(f"{self._known.url} does not speak MCP (HTTP {status})", sent=True) from None
        if isinstance(document, dict) and "jsonrpc" in document:
            return content if b"\n" not in content else json.dumps(document).encode()
        if status < 300:
            return content
        return _refused(message, status, document)

    def _headers(self, message: dict[str, Any]) -> dict[str, str]:
        headers = {
            "Authorization": f"Bearer {self._known.token}",
            "Content-Type": "application/json",
            "Accept": "application/json",
            "User-Agent": "leasehub-mcp-stdio",
        }
        holder = self._own_holder()
        if holder:
            headers["LeaseHub-Holder"] = holder
        params = message.get("params")
        params = params if isinstance(params, dict) else {}
        meta = params.get("_meta")
        version = meta.get(PROTOCOL_VERSION) if isinstance(meta, dict) else None
        if isinstance(version, str):
            # What the newer protocol wants beside the message, over HTTP.
            headers["MCP-Protocol-Version"] = _legible(version)
            headers["Mcp-Method"] = _legible(str(message.get("method", "")))
            if "name" in params:
                headers["Mcp-Name"] = _legible(str(params["name"]))
        return headers

    def _own_holder(self) -> str:
        """A holder of this process alone, asked for when the server is first there; none where the key's fence has no
        room for one, so that the key acts as its principal."""
        with self._naming:
            if self._holder is None:
                connection = Connection(self._known.url, self._known.token)
                try:
                    own = own_holder(self._known, connection)
                    fence = str(connection.call("GET", "/v1/whoami")["holder_pattern"])
                except Failure:
                    # The call itself will tell what is wrong.
                    return ""
                self._holder = own if re.fullmatch(fence, own, re.ASCII) else ""
            return self._holder

    def _posted(self, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        give_up = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return self._post_once(body, headers)
            except Gone as gone:
                if gone.sent or time.monotonic() >= give_up:
                    raise
                time.sleep(0.25)

    def _post_once(self, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        connection, fresh = self._connection()
        try:
            if fresh:
                connection.connect()
        except OSError as error:
            self._drop()
            raise Gone(f"cannot reach {self._known.url}: {error.strerror or error}", sent=False) from None
        try:
            connection.request("POST", self._path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            self._drop()
            raise Gone(f"{self._known.url} broke off: {error}", sent=True) from None

    def _connection(self) -> tuple[http.client.HTTPConnection, bool]:
        """This thread's connection, and whether it is yet to be opened."""
        connection: http.client.HTTPConnection | None = getattr(self._connections, "open", None)
        # A kept one that has something to read was closed by the server: nothing may be sent into that.
        if (
            connection is not None
            and connection.sock is not None
            and not select.select([connection.sock], [], [], 0)[0]
        ):
            return connection, False
        if self._secure:
            connection = http.client.HTTPSConnection(self._host, timeout=TIMEOUT_SECONDS, context=self._context)
        else:
            connection = http.client.HTTPConnection(self._host, timeout=TIMEOUT_SECONDS)
        self._connections.open = connection
        return connection, True

    def _drop(self) -> None:
        self._connections.open.close()

    def _write(self, line: bytes) -> None:
        with self._writing:
            try:
                sys.stdout.buffer.write(line + b"\n")
                sys.stdout.buffer.flush()
            except BrokenPipeError:
                # The host has gone: nothing can be told to it any more.
                os._exit(0)


def _error(request_id: object, code: int, message: str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}).encode()


def _told(message: dict[str, Any], code: int, refusal: dict[str, Any]) -> bytes:
    """A refusal: of a tool as its result, which the model reads; of anything else as an error."""
    if message.get("method") != "tools/call":
        return _error(message.get("id"), code, f"{refusal['message']} {refusal['hint']}")
    result = {
        "resultType": "complete",
        "isError": True,
        "content": [{"type": "text", "text": json.dumps(refusal)}],
        "structuredContent": refusal,
    }
    return json.dumps({"jsonrpc": "2.0", "id": message.get("id"), "result": result}).encode()


def _unreachable(message: dict[str, Any], reason: str, *, sent: bool) -> bytes:
    hint = "Nothing was done. Call again in a moment."
    if sent:
        hint = "It may have been carried out: look (lease_status, handoff_inbox, explain) before you repeat it."
    refusal = {"code": "UNREACHABLE", "message": f"{reason}.", "hint": hint, "retry_after_s": 2}
    return _told(message, INTERNAL_ERROR, refusal)


def _refused(message: dict[str, Any], status: int, document: object) -> bytes:
    error = document.get("error") if isinstance(document, dict) else None
    known = error if isinstance(error, dict) else {}
    refusal = {
        "code": known.get("code", "INTERNAL"),
        "message": known.get("message", f"The server answered HTTP {status}."),
        "hint": "The key does not work (any more): ask the operator for another one, and start this process again."
        if status == 401
        else "Call again in a moment.",
    }
    return _told(message, REFUSED, refusal)


def _can_be_sent(holder: str) -> bool:
    """Whether the server is sent this very name in a header, not one that was cut or one that breaks the request."""
    return holder.isprintable() and holder == holder.strip() and all(character <= "\xff" for character in holder)


def _legible(text: str) -> str:
    """A header's value; what cannot be one is not a name that the server has either."""
    return text if text.isascii() and text.isprintable() else "?"
