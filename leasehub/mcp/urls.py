from django.urls import path

from leasehub.mcp import tools  # noqa: F401  registers them
from leasehub.mcp.server import endpoint

urlpatterns = [path("", endpoint, name="mcp")]
