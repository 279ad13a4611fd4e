from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehub.cli.timestamps import epoch_ms, iso
from leasehub.client.failures import Internal

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@given(st.integers(min_value=0, max_value=253_402_300_799_999))
def test_both_ways_agree_with_datetime(ms):
    text = (EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert iso(ms) == text
    assert epoch_ms(text) == ms


def test_the_fraction_may_be_absent_or_longer():
    assert epoch_ms("2001-09-09T01:46:40Z") == 1_000_000_000_000
    assert epoch_ms("2001-09-09T01:46:40.1234567Z") == 1_000_000_000_123


@pytest.mark.parametrize("text", ["", "now", None, 5, "2001-09-09 01:46:40Z", "2001-09-09T01:46:40+01:00"])
def test_anything_else_is_the_servers_fault(text):
    with pytest.raises(Internal):
        epoch_ms(text)
