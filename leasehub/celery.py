"""The Celery application. Every task scans rows: losing or doubling a message harms nothing."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "leasehub.settings")

app = Celery("leasehub")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(
    ["leasehub.identity", "leasehub.events", "leasehub.mcp", "leases", "handoffs", "pools", "leasehub.management"]
)
