"""The form of an API key: lh_<8>_<43><6>, base62, the last six a CRC-32 so that a typo is seen offline."""

import hashlib
import re
import secrets
import zlib

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
FORM = re.compile(r"lh_[0-9A-Za-z]{8}_[0-9A-Za-z]{49}")
PREFIX_LENGTH = len("lh_") + 8


def make() -> str:
    """A new secret with 256 random bits."""
    name = base62(secrets.randbits(64), 8)
    body = base62(int.from_bytes(secrets.token_bytes(32)), 43)
    return f"lh_{name}_{body}{checksum(name + body)}"


def base62(number: int, length: int) -> str:
    digits = ""
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits += ALPHABET[digit]
    return digits


def checksum(text: str) -> str:
    return base62(zlib.crc32(text.encode()), 6)


def sha256(text: str) -> str:
    """A fast hash is right here: the secret has 256 bits, and a slow one would let strangers load the server."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def well_formed(text: str) -> bool:
    return bool(FORM.fullmatch(text)) and checksum(text[3:11] + text[12:55]) == text[55:]
