from django.urls import path

from leases import api
from leases.queues import api as queues

urlpatterns = [
    path("leases", api.Leases.as_view()),
    path("leases/status", api.LeaseStatus.as_view()),
    path("leases/reaped", api.ReapedLeases.as_view()),
    path("leases/reap", api.ReapLease.as_view()),
    path("leases/reconcile", api.ReconcileLeases.as_view()),
    path("leases/heartbeats", api.HeartbeatLeases.as_view()),
    path("leases/hot-claim", queues.HotClaim.as_view()),
    path("leases/<str:lease_id>", api.Lease.as_view()),
    path("leases/<str:lease_id>/heartbeat", api.HeartbeatLease.as_view()),
    path("leases/<str:lease_id>/force-release", api.ForceReleaseLease.as_view()),
    path("fence/check", api.FenceCheck.as_view()),
    path("queues", queues.Queues.as_view()),
    path("queues/<str:queue>", queues.ShowQueue.as_view()),
    path("queues/<str:queue>/tasks", queues.QueueTasks.as_view()),
    path("tasks/<str:task_id>", queues.ShowTask.as_view()),
    path("tasks/<str:task_id>/complete", queues.CompleteTaskOperation.as_view()),
    path("tasks/<str:task_id>/fail", queues.FailTaskOperation.as_view()),
    path("tasks/<str:task_id>/retry", queues.RetryTask.as_view()),
]
