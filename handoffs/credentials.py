"""Strings that look like credentials: work is handed on without them."""

from collections.abc import Iterator
from typing import Any

import re2

from leasehub.errors import ValidationError


def _linear(pattern: str) -> Any:
    """Agents choose the texts: a pattern that backtracks would let one of them stop every thread."""
    # RE2 has no verbose syntax: spaces that count are escaped.
    parts = [part.strip() for line in pattern.strip().splitlines() for part in line.split(" | ")]
    return re2.compile("|".join(part.replace("\\ ", " ") for part in parts if part))


# Prefixes that issuers chose so that a leaked secret is recognized, and what cannot be anything else.
LOOKS_LIKE_A_CREDENTIAL = _linear(
    r"""
      \blh_[0-9A-Za-z]{8}_[0-9A-Za-z]{40,}
    | \btiten_sk_[\w-]{20,}
    | \bgh[pousr]_[0-9A-Za-z]{20,} | \bgithub_pat_\w{20,} | \bglpat-[\w-]{16,}
    | \bsk-[\w-]{16,} | \b[sr]k_(?:live|test)_[0-9A-Za-z]{16,}
    | \b(?:AKIA|ASIA)[0-9A-Z]{16}\b | \bAIza[\w-]{30,}
    | \bxox[abeoprs]-[\w-]{10,} | \bnpm_[0-9A-Za-z]{30,} | \bpypi-[\w-]{40,} | \bdop_v1_[0-9a-f]{40,}
    | \bwhsec_[0-9A-Za-z+/=]{20,} | \bmcp_[0-9A-Za-z]{20,}
    | \beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]*
    | -----BEGIN\ [A-Z0-9\ ]*PRIVATE\ KEY
    | \b[a-z][a-z0-9+.-]{1,20}://[^\s/@:]*:[^\s/@]+@
    | \bAuthorization:\s*(?:Bearer|Basic|Token)\s+\S{8,}
    """
)


def refuse(**members: Any) -> None:
    """Raises ValidationError, with the name of every member whose text looks like a credential."""
    wrong = {
        name: "looks like a credential: hand work on without secrets"
        for member, value in members.items()
        for name, text in _texts(member, value)
        if LOOKS_LIKE_A_CREDENTIAL.search(text)
    }
    if wrong:
        raise ValidationError(f"{', '.join(wrong)}: looks like a credential.", **wrong)


def _texts(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield name, str(key)
            yield from _texts(f"{name}.{key}", item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(f"{name}.{index}", item)
