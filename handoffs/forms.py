"""What a person fills in."""

from datetime import timedelta
from typing import Any

from django import forms

from leasehub.api.parsing import MAX_MESSAGE_LENGTH
from leases.models import Resource, public_lease_id

HOURS = {"": "no deadline", "1": "within an hour", "8": "within 8 hours", "24": "within a day", "168": "within a week"}
ROWS = {"rows": 4}


class SendForm(forms.Form):
    to_principal = forms.CharField(
        label="To", max_length=200, widget=forms.TextInput(attrs={"list": "handles", "autocomplete": "off"})
    )
    subject_id = forms.CharField(label="Subject", max_length=200, help_text="What it is about, for example deploy-41.")
    message = forms.CharField(
        label="Message", max_length=MAX_MESSAGE_LENGTH, required=False, widget=forms.Textarea(attrs=ROWS)
    )
    next_action = forms.CharField(
        label="Next action",
        max_length=MAX_MESSAGE_LENGTH,
        required=False,
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text="The first concrete step, written for a stranger.",
    )
    lease_ids = forms.MultipleChoiceField(
        label="Leases that go with it", required=False, widget=forms.CheckboxSelectMultiple
    )
    hours = forms.ChoiceField(label="To be accepted", choices=list(HOURS.items()), required=False)

    def __init__(self, *args: Any, leases: list[Resource], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["lease_ids"]
        assert isinstance(field, forms.MultipleChoiceField)
        field.choices = [(public_lease_id(row.lease_id), str(row)) for row in leases if row.lease_id is not None]

    def wait(self) -> timedelta | None:
        hours = self.cleaned_data["hours"]
        return timedelta(hours=int(hours)) if hours else None


class ReasonForm(forms.Form):
    reason = forms.CharField(max_length=MAX_MESSAGE_LENGTH, widget=forms.Textarea(attrs={"rows": 3}))


class CompleteForm(forms.Form):
    result = forms.CharField(
        max_length=MAX_MESSAGE_LENGTH,
        required=False,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text="What came of it; the giver reads this.",
    )
