"""Which server to talk to, and with which key."""

import os

from leasehub.client import jsontext
from leasehub.client.failures import Usage

HOWTO = (
    "set LEASEHUB_URL and LEASEHUB_TOKEN, or LEASEHUB_CREDENTIALS to a credentials file, "
    "or LEASEHUB_DATA to the folder of `leasehub up`, or run at or below where it made .leasehub/credentials.json"
)


class Credentials:
    """``source`` says where they come from; ``principal`` is the key's own handle where that is known."""

    __slots__ = ("principal", "source", "token", "url")

    def __init__(self, *, url: str, token: str, principal: str | None, source: str) -> None:
        self.url = url.rstrip("/")
        self.token = token
        self.principal = principal
        self.source = source


def find() -> Credentials:
    """The first of: the environment, the file that it names, the nearest .leasehub folder, the user's own, that of
    the data folder that the environment names.

    A source that is there but cannot be used is an error, never skipped: talking to another server than the
    one that was meant would give out one resource twice.
    """
    url, token = os.environ.get("LEASEHUB_URL", ""), os.environ.get("LEASEHUB_TOKEN", "")
    if url and token:
        return checked(url, token, None, "LEASEHUB_URL and LEASEHUB_TOKEN")
    if token:
        raise Usage("LEASEHUB_TOKEN is set without LEASEHUB_URL: set both or neither")
    file = find_file()
    if file is None:
        raise Usage(f"no credentials found: {HOWTO}")
    found = _read(file)
    if url and url.rstrip("/") != found.url:
        raise Usage(f"LEASEHUB_URL is {url} but {file} is for {found.url}: set LEASEHUB_TOKEN too")
    return found


def find_file() -> str | None:
    named = os.environ.get("LEASEHUB_CREDENTIALS", "")
    if named:
        return named
    folder = os.getcwd()
    while True:
        file = os.path.join(folder, ".leasehub", "credentials.json")
        if os.path.lexists(file):
            return file
        above = os.path.dirname(folder)
        if above == folder:
            break
        folder = above
    file = os.path.join(os.path.expanduser("~"), ".config", "leasehub", "credentials.json")
    if os.path.lexists(file):
        return file
    # Where `leasehub up` puts them. A fleet's process has such a folder without any in it.
    data = os.environ.get("LEASEHUB_DATA", "")
    file = os.path.join(data, "credentials.json")
    return file if data and os.path.lexists(file) else None


def _read(file: str) -> Credentials:
    try:
        with open(file, "rb") as stream:
            content = jsontext.parse(stream.read(1 << 20).decode())
    except OSError as error:
        raise Usage(f"cannot read the credentials file {file}: {error.strerror}") from None
    except ValueError as error:
        raise Usage(f"the credentials file {file} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise Usage(f"the credentials file {file} is not a JSON object")
    for name in ("url", "token"):
        if not isinstance(content.get(name), str) or not content[name]:
            raise Usage(f'the credentials file {file} has no "{name}"')
    principal = content.get("principal")
    return checked(content["url"], content["token"], principal if isinstance(principal, str) else None, file)


def checked(url: str, token: str, principal: str | None = None, source: str = "the caller") -> Credentials:
    # It goes into a header line as it is.
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise Usage(f"the token from {source} has characters that no key has")
    return Credentials(url=url, token=token, principal=principal or None, source=source)
