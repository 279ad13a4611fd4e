from django.urls import path

from pools import api

# A slot's id may have a slash.
SLOT = "pools/<str:pool>/slots/<path:slot_id>"

urlpatterns = [
    path("pools", api.Pools.as_view()),
    path("pools/<str:pool>", api.PoolByName.as_view()),
    path("pools/<str:pool>/requests", api.Requests.as_view()),
    path("pools/<str:pool>/requests/<str:request_id>", api.RequestById.as_view()),
    path("pools/<str:pool>/runs/<str:run_id>", api.RunById.as_view()),
    path("pools/<str:pool>/pump", api.PumpPool.as_view()),
    path(f"{SLOT}/heartbeat", api.HeartbeatSlot.as_view()),
    path(f"{SLOT}/release", api.ReleaseSlot.as_view()),
    path(f"{SLOT}/reset", api.ResetSlot.as_view()),
    path(f"{SLOT}/reprovision", api.ReprovisionSlot.as_view()),
    path(f"{SLOT}/health", api.CheckSlot.as_view()),
    path(f"{SLOT}/drain", api.DrainSlot.as_view()),
    path(f"{SLOT}/undrain", api.UndrainSlot.as_view()),
    path(f"{SLOT}/repair", api.RepairSlot.as_view()),
]
