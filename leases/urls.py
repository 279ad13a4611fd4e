from django.urls import path

from leases import api

urlpatterns = [
    path("leases", api.Leases.as_view()),
    path("leases/status", api.LeaseStatus.as_view()),
    path("leases/reaped", api.ReapedLeases.as_view()),
    path("leases/reap", api.ReapLease.as_view()),
    path("leases/reconcile", api.ReconcileLeases.as_view()),
    path("leases/heartbeats", api.HeartbeatLeases.as_view()),
    path("leases/<str:lease_id>", api.Lease.as_view()),
    path("leases/<str:lease_id>/heartbeat", api.HeartbeatLease.as_view()),
    path("leases/<str:lease_id>/force-release", api.ForceReleaseLease.as_view()),
    path("fence/check", api.FenceCheck.as_view()),
]
