"""What a check found."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

#: More of them are counted, not told.
MOST_TOLD = 1000


@dataclass(frozen=True, slots=True)
class Finding:
    organization: str
    #: What is wrong, in one word: docs/operations.md says what each means.
    code: str
    #: type/id of what it is about.
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.code}: {self.organization}: {self.subject}: {self.text}"


@dataclass
class Report:
    findings: list[Finding] = field(default_factory=list)
    found: int = 0
    by_code: "Counter[str]" = field(default_factory=Counter)
    #: How many events, resources, … were looked at.
    checked: "Counter[str]" = field(default_factory=Counter)
    took_ms: int = 0
    at: str = ""

    @property
    def ok(self) -> bool:
        return self.found == 0

    def add(self, organization: str, code: str, subject: str, text: str) -> None:
        self.found += 1
        self.by_code[code] += 1
        if self.found <= MOST_TOLD:
            self.findings.append(Finding(organization, code, subject, text))

    def document(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "at": self.at,
            "took_ms": self.took_ms,
            "checked": dict(self.checked),
            "found": self.found,
            "by_code": dict(sorted(self.by_code.items())),
            "findings": [
                {"organization": one.organization, "code": one.code, "subject": one.subject, "text": one.text}
                for one in self.findings
            ],
        }
