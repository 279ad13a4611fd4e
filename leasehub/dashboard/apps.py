from django.apps import AppConfig


class DashboardConfig(AppConfig):
    name = "leasehub.dashboard"
    label = "dashboard"
