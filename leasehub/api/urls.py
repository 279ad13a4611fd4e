from django.urls import path

from leasehub.api import events, identity

urlpatterns = [
    path("whoami", identity.ShowCaller.as_view()),
    path("principals", identity.Principals.as_view()),
    path("principals/<str:handle>/retire", identity.RetirePrincipal.as_view()),
    path("keys", identity.Keys.as_view()),
    path("keys/<str:key_id>", identity.RevokeKey.as_view()),
    path("keys/<str:key_id>/rotate", identity.RotateKeySecret.as_view()),
    path("events", events.Events.as_view()),
]
