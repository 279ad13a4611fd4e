"""The lean JSON against json itself."""

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehub.client import jsontext

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(VALUES)
@settings(max_examples=200, deadline=None)
def test_what_is_written_is_what_json_writes_and_reads_back(value):
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    assert jsontext.compact(value) == text.encode()
    assert jsontext.parse(f" \n{text}\t") == value
    assert json.loads(jsontext.pretty(value)) == value


def test_a_lone_surrogate_is_written_as_its_escape():
    assert jsontext.compact({"a": "\ud800"}) == b'{"a":"\\ud800"}'
    assert jsontext.parse('"\\ud800"') == "\ud800"


MALFORMED = [
    "",
    " ",
    "{",
    "[1,]",
    '{"a":}',
    "nul",
    "1 2",
    '"\t"',
    '"\\x"',
    "NaN",
    "-Infinity",
    "\ufeff1",
    "[" * 10**5,
]


@pytest.mark.parametrize("text", MALFORMED)
def test_what_is_not_json_is_a_value_error(text):
    with pytest.raises(ValueError):
        jsontext.parse(text)


@pytest.mark.parametrize("text", MALFORMED)
def test_it_is_one_as_well_where_json_was_never_imported(text):
    script = (
        "import sys; from leasehub.client import jsontext; assert 'json' not in sys.modules\n"
        "try: jsontext.parse(sys.stdin.read())\n"
        "except ValueError: sys.exit(7)"
    )
    ran = subprocess.run([sys.executable, "-c", script], input=text, text=True, check=False)
    assert ran.returncode == 7


def test_nan_is_never_written():
    with pytest.raises(ValueError):
        jsontext.compact([float("inf")])
