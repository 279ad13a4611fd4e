"""/v1/whoami, /v1/principals, /v1/keys."""

from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

from django.http import HttpRequest, HttpResponse
from pydantic import BaseModel, Field, StringConstraints

from leasehub.api import paging
from leasehub.api.parsing import Body, DisplayName, Instant, Label, Page, parse_body, parse_query
from leasehub.api.rendering import data
from leasehub.api.views import Operation, operation
from leasehub.db import clock
from leasehub.errors import NotFound, ValidationError
from leasehub.identity import queries, services
from leasehub.identity.errors import HandleTaken, MissingRing
from leasehub.identity.models import DEFAULT_HOLDER_PATTERN, ApiKey, Principal
from leasehub.identity.rings import OBSERVE, OPERATE

Handle = Annotated[str, StringConstraints(pattern=DEFAULT_HOLDER_PATTERN, max_length=128)]
Kind = Literal["agent", "service", "human"]
Ring = Annotated[int, Field(ge=1, le=3)]


class WhoAmI(BaseModel):
    organization: str
    principal: str
    kind: Kind
    holder_pattern: str
    rings: list[int]
    key_id: str


class PrincipalView(BaseModel):
    handle: str
    kind: Kind
    display_name: str
    created_at: str
    retired_at: str | None


class PrincipalPage(BaseModel):
    principals: list[PrincipalView]
    next: str | None


class CreatePrincipal(Body):
    EXAMPLE: ClassVar = {"handle": "ci", "kind": "agent"}

    handle: Handle
    kind: Kind
    display_name: DisplayName = ""


class KeyView(BaseModel):
    key_id: str
    principal: str
    kind: Kind
    label: str
    prefix: str
    rings: list[int]
    holder_pattern: str
    created_at: str
    expires_at: str | None
    revoked_at: str | None
    last_used_at: str | None


class KeyPage(BaseModel):
    keys: list[KeyView]
    next: str | None


class IssuedKey(KeyView):
    #: Shown this once.
    api_key: str


class CreateKey(Body):
    EXAMPLE: ClassVar = {"principal": "ci", "rings": [1, 2], "holder_pattern": "^ci-.*$", "label": "nightly"}

    principal: Handle
    kind: Kind = "agent"
    label: Label = ""
    rings: Annotated[list[Ring], Field(min_length=1, max_length=3)] = [1, 2]
    holder_pattern: Annotated[str, StringConstraints(min_length=1, max_length=200)] = DEFAULT_HOLDER_PATTERN
    expires_at: Instant | None = None


class RotateKey(Body):
    overlap_seconds: Annotated[int, Field(ge=0, le=86400)] = 3600


class RevokedKey(BaseModel):
    key_id: str
    revoked_at: str


class ShowCaller(Operation):
    @operation("whoami", answers={200: WhoAmI}, summary="Who this key speaks for, and what it may do")
    def get(self, request: HttpRequest) -> HttpResponse:
        return data(
            {
                "organization": self.caller.organization_name,
                "principal": self.caller.handle,
                "kind": self.caller.kind,
                "holder_pattern": self.caller.holder_pattern,
                "rings": sorted(self.caller.rings),
                "key_id": self.caller.key_id,
            }
        )


class Principals(Operation):
    @operation(
        "principal_list",
        ring=OBSERVE,
        query=Page,
        answers={200: PrincipalPage},
        summary="The principals of the organization",
    )
    def get(self, request: HttpRequest) -> HttpResponse:
        rows = queries.principals(organization=self.caller.organization)
        found, following = paging.page(rows, parse_query(request, Page))
        return data({"principals": [principal_view(row) for row in found], "next": following})

    @operation(
        "principal_create",
        ring=OPERATE,
        body=CreatePrincipal,
        answers={201: PrincipalView},
        errors=[HandleTaken],
        summary="Make a principal",
    )
    def post(self, request: HttpRequest) -> HttpResponse:
        given = parse_body(request, CreatePrincipal)
        made = services.create_principal(organization=self.caller.organization, **given.model_dump())
        return data(principal_view(made), 201)


class RetirePrincipal(Operation):
    @operation(
        "principal_retire",
        ring=OPERATE,
        answers={200: PrincipalView},
        errors=[NotFound],
        summary="Retire a principal: none of its keys works any more",
    )
    def post(self, request: HttpRequest, handle: str) -> HttpResponse:
        parse_body(request, Body)
        if handle == self.caller.handle:
            raise ValidationError("A key cannot retire its own principal.", handle="is this key's own principal")
        retired = services.retire_principal(organization=self.caller.organization, handle=handle)
        return data(principal_view(retired))


class Keys(Operation):
    @operation("key_list", ring=OPERATE, query=Page, answers={200: KeyPage}, summary="The organization's keys")
    def get(self, request: HttpRequest) -> HttpResponse:
        rows = queries.keys(organization=self.caller.organization)
        found, following = paging.page(rows, parse_query(request, Page))
        return data({"keys": [key_view(row) for row in found], "next": following})

    @operation(
        "key_create",
        ring=OPERATE,
        body=CreateKey,
        answers={201: IssuedKey},
        errors=[MissingRing, NotFound],
        shows_secret=True,
        summary="Make a key, and its principal when that is new; the secret is shown this once",
    )
    def post(self, request: HttpRequest) -> HttpResponse:
        given = parse_body(request, CreateKey)
        known = queries.principals(organization=self.caller.organization).filter(handle=given.principal).first()
        if known is not None and "kind" in given.model_fields_set and given.kind != known.kind:
            raise ValidationError(f"{known.handle} is a principal of kind {known.kind}.", kind=f"is {known.kind}")
        made, plain = services.create_key(
            granted_by=self.caller,
            handle=given.principal,
            kind=given.kind,
            label=given.label,
            rings=given.rings,
            holder_pattern=given.holder_pattern,
            expires_at=given.expires_at,
        )
        return data({**key_view(made), "api_key": plain}, 201)


class RevokeKey(Operation):
    @operation(
        "key_revoke",
        ring=OPERATE,
        answers={200: RevokedKey},
        errors=[NotFound],
        summary="Revoke a key from the next call on; repeatable",
    )
    def delete(self, request: HttpRequest, key_id: str) -> HttpResponse:
        key = queries.key(organization=self.caller.organization, key_id=key_id)
        revoked = services.revoke_key(organization=self.caller.organization, key=key)
        return data({"key_id": revoked.key_id, "revoked_at": _iso(revoked.revoked_at)})


class RotateKeySecret(Operation):
    @operation(
        "key_rotate",
        ring=OPERATE,
        body=RotateKey,
        answers={201: IssuedKey},
        errors=[MissingRing, NotFound],
        shows_secret=True,
        summary="A new key with the same rights; the old one works for the overlap",
    )
    def post(self, request: HttpRequest, key_id: str) -> HttpResponse:
        given = parse_body(request, RotateKey)
        key = queries.key(organization=self.caller.organization, key_id=key_id)
        made, plain = services.rotate_key(
            organization=self.caller.organization,
            granting=self.caller.rings,
            key=key,
            overlap_seconds=given.overlap_seconds,
        )
        return data({**key_view(made), "api_key": plain}, 201)


def principal_view(row: Principal) -> dict[str, Any]:
    return {
        "handle": row.handle,
        "kind": row.kind,
        "display_name": row.display_name,
        "created_at": clock.iso(row.created_at),
        "retired_at": _iso(row.retired_at),
    }


def key_view(row: ApiKey) -> dict[str, Any]:
    return {
        "key_id": row.key_id,
        "principal": row.principal.handle,
        "kind": row.principal.kind,
        "label": row.label,
        "prefix": row.prefix,
        "rings": row.rings,
        "holder_pattern": row.holder_pattern,
        "created_at": clock.iso(row.created_at),
        "expires_at": _iso(row.expires_at),
        "revoked_at": _iso(row.revoked_at),
        "last_used_at": _iso(row.last_used_at),
    }


def _iso(at: datetime | None) -> str | None:
    return None if at is None else clock.iso(at)
