from collections.abc import Iterator

import pytest

from leasehub.identity import authentication


@pytest.fixture(autouse=True)
def a_process_that_remembers_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tests reuse row ids, which a process takes for the keys that it has seen."""
    monkeypatch.setattr(authentication, "_remembered", {})
    monkeypatch.setattr(authentication, "_last_used", {})
    yield
