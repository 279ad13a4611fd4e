"""Every address of the server."""

from django.contrib import admin
from django.urls import include, path
from drf_spectacular.views import SpectacularSwaggerView

from leasehub.api import document, health
from leasehub.management import api as operators
from leasehub.management import metrics, views

handler400 = "leasehub.api.failures.bad_request"
handler404 = "leasehub.api.failures.not_found"
handler500 = "leasehub.api.failures.server_error"

admin.autodiscover()

urlpatterns = [
    path("v1/", include("leases.urls")),
    path("v1/", include("handoffs.urls")),
    path("v1/", include("pools.urls")),
    path("v1/", include("leasehub.explain.urls")),
    path("v1/", include("leasehub.api.urls")),
    path("v1/doctor", operators.Doctor.as_view()),
    path("v1/schema", document.openapi, name="schema"),
    path("v1/docs", SpectacularSwaggerView.as_view(url_name="schema")),
    path("mcp", include("leasehub.mcp.urls")),
    path("", include("leasehub.a2a.urls")),
    path("", include("leasehub.guides.urls")),
    path("", include("leasehub.dashboard.urls")),
    path("", include("handoffs.page_urls")),
    path("healthz", health.healthz),
    path("readyz", health.readyz),
    path("metrics", metrics.metrics),
    path("admin/invariants/", admin.site.admin_view(views.invariants), name="invariants"),
    path("admin/", admin.site.urls),
]
