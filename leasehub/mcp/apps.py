from django.apps import AppConfig


class McpConfig(AppConfig):
    name = "leasehub.mcp"
    label = "mcp"
