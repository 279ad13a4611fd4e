from django.urls import path

from handoffs import views

urlpatterns = [
    path("handoffs", views.inbox, name="inbox"),
    path("handoffs/accepted", views.inbox, {"box": "accepted"}, name="accepted"),
    path("handoffs/sent", views.inbox, {"box": "sent"}, name="sent"),
    path("handoffs/badge", views.badge, name="badge"),
    path("handoffs/new", views.send, name="send"),
    path("handoffs/<str:handoff_id>", views.show, name="handoff"),
    path("handoffs/<str:handoff_id>/accept", views.accept, name="accept"),
    path("handoffs/<str:handoff_id>/reject", views.reject, name="reject"),
    path("handoffs/<str:handoff_id>/withdraw", views.withdraw, name="withdraw"),
    path("handoffs/<str:handoff_id>/complete", views.complete, name="complete"),
]
