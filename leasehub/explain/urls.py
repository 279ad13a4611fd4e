from django.urls import path

from leasehub.explain import api

urlpatterns = [
    path("explain", api.Explain.as_view()),
    path("explain/requests/<str:request_id>", api.ExplainRequest.as_view()),
]
