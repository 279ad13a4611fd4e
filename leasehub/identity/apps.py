from django.apps import AppConfig


class IdentityConfig(AppConfig):
    name = "leasehub.identity"
    label = "identity"
