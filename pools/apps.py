from django.apps import AppConfig


class PoolsConfig(AppConfig):
    name = "pools"

    def ready(self) -> None:
        from leases import owners
        from pools.models import RESOURCE_TYPE
        from pools.ownership import SlotOwner

        owners.register(RESOURCE_TYPE, SlotOwner())
