from django.urls import path

from leasehub.a2a import views

urlpatterns = [
    path("a2a", views.endpoint, name="a2a"),
    path(".well-known/agent-card.json", views.card, name="agent_card"),
]
