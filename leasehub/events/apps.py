from django.apps import AppConfig


class EventsConfig(AppConfig):
    name = "leasehub.events"
    label = "events"
