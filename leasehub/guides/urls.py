from django.urls import path

from leasehub.guides import views

urlpatterns = [
    path("llms.txt", views.overview, name="llms"),
    path("docs/<str:name>.md", views.guide, name="guide"),
]
