from django.urls import path

from handoffs import api

urlpatterns = [
    path("handoffs", api.Handoffs.as_view()),
    path("handoffs/statistics", api.HandoffStatistics.as_view()),
    path("handoffs/<str:handoff_id>", api.ShowHandoff.as_view()),
    path("handoffs/<str:handoff_id>/resolve", api.ResolveHandoff.as_view()),
    path("handoffs/<str:handoff_id>/withdraw", api.WithdrawHandoff.as_view()),
    path("handoffs/<str:handoff_id>/complete", api.CompleteHandoff.as_view()),
    path("checkpoints", api.Checkpoints.as_view()),
    path("checkpoints/<str:checkpoint_id>", api.CheckpointById.as_view()),
    path("checkpoints/<path:subject_id>/<str:kind>", api.CheckpointByName.as_view()),
]
