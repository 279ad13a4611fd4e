"""/v1/doctor."""

from typing import Literal

from django.http import HttpRequest, HttpResponse
from pydantic import BaseModel

from leasehub.api.rendering import data
from leasehub.api.views import Operation, operation
from leasehub.identity.rings import OPERATE
from leasehub.management import doctor

Status = Literal["ok", "warn", "fail"]


class CheckView(BaseModel):
    check: str
    status: Status
    message: str
    #: What to do; empty when all is well.
    todo: str


class DoctorView(BaseModel):
    #: The worst of the checks.
    status: Status
    version: str
    #: The server's own clock.
    at: str
    checks: list[CheckView]


class Doctor(Operation):
    @operation(
        "doctor",
        ring=OPERATE,
        answers={200: DoctorView},
        summary="Whether the server is well: database, migrations, beat, workers, backlogs, and what to do",
    )
    def get(self, request: HttpRequest) -> HttpResponse:
        return data(doctor.document(doctor.examine(organization=self.caller.organization)))
