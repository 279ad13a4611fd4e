from django.urls import path

from leasehub.api import events, identity, webhooks

urlpatterns = [
    path("whoami", identity.ShowCaller.as_view()),
    path("principals", identity.Principals.as_view()),
    path("principals/<str:handle>/retire", identity.RetirePrincipal.as_view()),
    path("keys", identity.Keys.as_view()),
    path("keys/<str:key_id>", identity.RevokeKey.as_view()),
    path("keys/<str:key_id>/rotate", identity.RotateKeySecret.as_view()),
    path("events", events.Events.as_view()),
    path("events/stream", events.EventStream.as_view()),
    path("webhooks", webhooks.Webhooks.as_view()),
    path("webhooks/<str:webhook_id>", webhooks.Webhook.as_view()),
    path("webhooks/<str:webhook_id>/pause", webhooks.PauseWebhook.as_view()),
    path("webhooks/<str:webhook_id>/resume", webhooks.ResumeWebhook.as_view()),
    path("webhooks/<str:webhook_id>/rotate", webhooks.RotateWebhook.as_view()),
    path("webhooks/<str:webhook_id>/test", webhooks.TestWebhook.as_view()),
    path("webhooks/<str:webhook_id>/replay", webhooks.ReplayDeliveries.as_view()),
    path("webhooks/<str:webhook_id>/deliveries", webhooks.Deliveries.as_view()),
    path("webhooks/<str:webhook_id>/deliveries/<str:delivery_id>", webhooks.Delivery.as_view()),
    path("webhooks/<str:webhook_id>/deliveries/<str:delivery_id>/replay", webhooks.ReplayDelivery.as_view()),
]
