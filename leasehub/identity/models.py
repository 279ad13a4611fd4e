"""Who acts: organizations, principals, API keys; answers remembered for an Idempotency-Key; attempts to sign in."""

import uuid
from typing import ClassVar

from django.conf import settings
from django.db import models

from leasehub.identity.rings import ACT, OBSERVE, OPERATE

DEFAULT_HOLDER_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}$"


class Organization(models.Model):
    """The tenant. Everything belongs to one; nothing is visible across."""

    name = models.CharField(max_length=128)
    created_at = models.DateTimeField()

    class Meta:
        default_permissions = ("add", "view")
        constraints: ClassVar = [
            # A name must say which tenant is meant.
            models.UniqueConstraint(fields=["name"], name="organization_name_is_unique"),
        ]

    def __str__(self) -> str:
        return self.name


class Principal(models.Model):
    """Who acts. A retired one keeps its history; none of its keys works."""

    class Kind(models.TextChoices):
        AGENT = "agent"
        SERVICE = "service"
        HUMAN = "human"

    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="principals")
    handle = models.CharField(max_length=128)
    kind = models.CharField(max_length=8, choices=Kind)
    display_name = models.CharField(max_length=200, blank=True)
    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="principal"
    )
    created_at = models.DateTimeField()
    retired_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        default_permissions = ("add", "change", "view")
        constraints: ClassVar = [
            # Two principals of one handle would be each other's holder.
            models.UniqueConstraint(fields=["organization", "handle"], name="principal_handle_is_unique"),
            models.CheckConstraint(
                condition=models.Q(kind__in=["agent", "service", "human"]), name="principal_kind_is_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.organization}/{self.handle}"


class ApiKey(models.Model):
    """A secret of one principal, stored as SHA-256, shown once.

    Principal, rings and holder pattern never change after creation: a process may remember them, and only
    whether the key still works (revoked, expired, principal retired) is asked at every call.
    """

    public_id = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    principal = models.ForeignKey(Principal, on_delete=models.PROTECT, related_name="keys")
    secret_sha256 = models.CharField(max_length=64, unique=True, editable=False)
    #: The first characters of the secret, to recognize a key by.
    prefix = models.CharField(max_length=16, editable=False)
    label = models.CharField(max_length=120, blank=True)
    observes = models.BooleanField("RING-1 observe", default=True)
    acts = models.BooleanField("RING-2 act", default=True)
    operates = models.BooleanField("RING-3 operate", default=False)
    #: The holder fence: the whole of a holder must match.
    holder_pattern = models.CharField(max_length=200, default=DEFAULT_HOLDER_PATTERN)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    rotated_from = models.ForeignKey("self", on_delete=models.PROTECT, null=True, blank=True, related_name="+")

    class Meta:
        verbose_name = "API key"
        verbose_name_plural = "API keys"
        default_permissions = ("add", "view")
        permissions: ClassVar = [("revoke_apikey", "Can revoke API key")]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=models.Q(observes=True) | models.Q(acts=True) | models.Q(operates=True),
                name="key_carries_a_ring",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.prefix}… of {self.principal}"

    @property
    def key_id(self) -> str:
        return f"key_{self.public_id.hex}"

    @property
    def rings(self) -> list[int]:
        carried = {OBSERVE: self.observes, ACT: self.acts, OPERATE: self.operates}
        return [ring for ring, carries in carried.items() if carries]


class RememberedAnswer(models.Model):
    """What a request with an Idempotency-Key was answered, written in the transaction of its effect."""

    principal = models.ForeignKey(Principal, on_delete=models.CASCADE, related_name="+")
    key_sha256 = models.CharField(max_length=64)
    #: Method, path, query and body: the same key with another request is refused.
    request_sha256 = models.CharField(max_length=64)
    status = models.PositiveSmallIntegerField(null=True)
    headers = models.JSONField(default=dict)
    body = models.BinaryField(null=True)
    #: The body shows a secret: it is encrypted, and erased after ten minutes.
    is_secret = models.BooleanField(default=False)
    created_at = models.DateTimeField()

    class Meta:
        default_permissions = ()
        constraints: ClassVar = [
            # The second of two equal requests waits here for the first one's transaction.
            models.UniqueConstraint(fields=["principal", "key_sha256"], name="idempotency_key_is_used_once"),
        ]
        indexes: ClassVar = [
            # The sweep that forgets old answers.
            models.Index(fields=["created_at"], name="remembered_by_age"),
        ]


class SignInAttempts(models.Model):
    """How often a password was tried lately: of an account from an address, and of any account from an address.

    Neither name is kept, since people type passwords into the wrong field.
    """

    subject_sha256 = models.CharField(max_length=64)
    #: Since the last success, or since nobody tried for long.
    attempts = models.PositiveIntegerField(default=0)
    tried_at = models.DateTimeField()

    class Meta:
        default_permissions = ()
        constraints: ClassVar = [
            # Two rows would each count half of the attempts.
            models.UniqueConstraint(fields=["subject_sha256"], name="sign_in_attempts_are_counted_once"),
        ]
        indexes: ClassVar = [
            # The sweep that forgets.
            models.Index(fields=["tried_at"], name="sign_in_by_age"),
        ]
