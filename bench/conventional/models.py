import uuid

from django.conf import settings
from django.db import models


class Lock(models.Model):
    resource_type = models.CharField(max_length=200)
    resource_id = models.CharField(max_length=200)
    lease_id = models.UUIDField(default=uuid.uuid4, unique=True)
    fencing_token = models.BigIntegerField(default=0)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    holder = models.CharField(max_length=128)
    ttl_seconds = models.PositiveIntegerField()
    expires_at = models.DateTimeField()

    class Meta:
        unique_together = (("resource_type", "resource_id"),)


class LockEvent(models.Model):
    lock = models.ForeignKey(Lock, on_delete=models.CASCADE)
    type = models.CharField(max_length=40)
    at = models.DateTimeField(auto_now_add=True)
    actor = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    data = models.JSONField(default=dict)


class Job(models.Model):
    queue = models.CharField(max_length=200)
    priority = models.IntegerField(default=0)
    payload = models.JSONField(default=dict)
    state = models.CharField(max_length=10, default="ready")
    attempts = models.PositiveIntegerField(default=0)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, null=True)
    expires_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [
            models.Index(fields=["queue", "-priority", "id"], name="job_ready", condition=models.Q(state="ready")),
        ]


class JobEvent(models.Model):
    job = models.ForeignKey(Job, on_delete=models.CASCADE)
    type = models.CharField(max_length=40)
    at = models.DateTimeField(auto_now_add=True)
    actor = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
