"""Which notices a client has read."""

from typing import ClassVar

from django.db import models

from leasehub.identity.models import ApiKey


class Reader(models.Model):
    """How far a holder that speaks through a key has read what concerns it. The notices themselves are events.

    An event's id is allotted before it is visible, so one below the newest that was read may still appear: what was
    read is kept by id, above a floor that moves to where no such event can appear any more (Feed.low_water).
    """

    key = models.ForeignKey(ApiKey, on_delete=models.CASCADE, db_constraint=False, db_index=False, related_name="+")
    holder = models.CharField(max_length=128)
    #: No event up to this id is told any more.
    floor = models.BigIntegerField()
    #: The ids above the floor that were read.
    seen = models.JSONField(default=list)
    #: When this row was written.
    used_at = models.DateTimeField()

    class Meta:
        default_permissions = ()
        constraints: ClassVar = [
            # Two of them would each repeat what the other has read.
            models.UniqueConstraint(fields=["key", "holder"], name="notices_have_one_reader"),
        ]
        indexes: ClassVar = [
            # The sweep that forgets readers of holders that are gone.
            models.Index(fields=["used_at"], name="notices_by_use"),
        ]

    def __str__(self) -> str:
        return f"{self.holder} at {self.floor}"
