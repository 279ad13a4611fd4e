from django.urls import path

from bench.conventional import api

urlpatterns = [
    path("leases", api.Acquire.as_view()),
    path("jobs/claim", api.Claim.as_view()),
    path("leases/<uuid:lease_id>/heartbeat", api.Heartbeat.as_view()),
]
