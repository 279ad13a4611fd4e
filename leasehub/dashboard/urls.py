from django.urls import path

from leasehub.dashboard import views

urlpatterns = [
    path("", views.home, name="home"),
    path("sign-in", views.sign_in, name="sign_in"),
    path("sign-out", views.sign_out, name="sign_out"),
    path("board", views.board, name="board"),
    path("resource", views.resource, name="resource"),
    path("pools", views.pool_list, name="pools"),
    path("pools/<str:name>", views.pool, name="pool"),
    path("queues", views.queue_list, name="queues"),
    # By its name in the query: it may have a slash.
    path("queue", views.queue, name="queue"),
    path("events", views.events, name="events"),
]
