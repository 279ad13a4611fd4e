"""The baseline: acquire and heartbeat as one writes them first with Django and REST framework.

A row locked with select_for_update in a transaction, a ModelSerializer in and out, TokenAuthentication, the
middleware of ``startproject``.
"""
