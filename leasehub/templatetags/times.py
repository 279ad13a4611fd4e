"""Times as people read them. ``now`` is database time, given by the view."""

from datetime import datetime, timedelta

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from leasehub.db import clock

register = template.Library()

UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
BAR_WIDTH = 100


@register.filter
def span(seconds: float) -> str:
    """The two largest units of a length of time: 3 d 4 h, 2 min 5 s. static/leasehub/pages.js says the same."""
    whole = max(0, int(seconds))
    for (name, size), (smaller, part) in zip(UNITS, UNITS[1:], strict=False):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {name} {rest} {smaller}" if rest else f"{whole // size} {name}"
    return f"{whole} s"


@register.filter
def span_of_ms(milliseconds: int) -> str:
    return span(milliseconds / 1000)


@register.simple_tag
def time_left(until: datetime, now: datetime) -> SafeString:
    """The time to an instant, counted down by the page's script where there is one."""
    left = (until - now).total_seconds()
    if left <= 0:
        return format_html(
            '<time class="over" datetime="{}" title="{}">ran out {} ago</time>',
            clock.iso(until),
            iso(until),
            span(-left),
        )
    return format_html(
        '<time class="left" role="timer" datetime="{}" title="{}" data-left-ms="{}">{}</time>',
        clock.iso(until),
        iso(until),
        int(left * 1000),
        span(left),
    )


@register.simple_tag
def ago(at: datetime | None, now: datetime) -> SafeString | str:
    if at is None:
        return "–"
    passed = (now - at).total_seconds()
    text = "just now" if passed < 1 else f"{span(passed)} ago"
    return format_html('<time datetime="{}" title="{}">{}</time>', clock.iso(at), iso(at), text)


@register.filter
def iso(at: datetime) -> str:
    """2026-07-30 10:58:13 UTC"""
    return at.strftime("%Y-%m-%d %H:%M:%S UTC")


@register.simple_tag
def rest_of(until: datetime, now: datetime, ttl_ms: int) -> SafeString:
    """A bar: how much of its ttl a lease has left."""
    left = max(timedelta(), until - now) / timedelta(milliseconds=max(1, ttl_ms))
    share = round(min(1.0, left) * BAR_WIDTH)
    return format_html(
        '<svg class="rest" viewBox="0 0 {} 4" preserveAspectRatio="none" role="img" aria-label="{} % of its time left">'
        '<rect class="track" width="{}" height="4"/><rect class="{}" width="{}" height="4"/></svg>',
        BAR_WIDTH,
        share,
        BAR_WIDTH,
        "low" if share < 20 else "rest",
        share,
    )
