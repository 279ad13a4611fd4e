from django.urls import path

from leasehub.dashboard import views

urlpatterns = [
    path("", views.home, name="home"),
    path("sign-in", views.sign_in, name="sign_in"),
    path("sign-out", views.sign_out, name="sign_out"),
    path("board", views.board, name="board"),
    path("resource", views.resource, name="resource"),
    path("events", views.events, name="events"),
]
