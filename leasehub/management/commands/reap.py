from typing import Any

from django.core.management.base import BaseCommand

from leases import services


class Command(BaseCommand):
    help = "Ends leases that ran out, as the beat does; harmless at any time."

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(f"{services.reap_due()} reaped")
