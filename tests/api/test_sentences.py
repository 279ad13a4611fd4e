"""What is wrong with a member is said in sentences of the house, whatever pydantic finds."""

from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, create_model

from leasehub.api.parsing import Body, validated
from leasehub.errors import ValidationError


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Inner(BaseModel):
    model_config = ConfigDict(strict=True)


A_TIME = "must be a time with its zone, like 2026-07-30T10:58:13.829Z"
CASES: list[tuple[Any, Any, str]] = [
    (Annotated[str, Field(min_length=1)], "", "must not be empty"),
    (Annotated[str, Field(min_length=3)], "ab", "must have at least 3 characters"),
    (Annotated[str, Field(max_length=2)], "abc", "must have at most 2 characters"),
    (Annotated[str, Field(pattern="^[a-z]+$")], "1", "must match ^[a-z]+$"),
    (str, 1, "must be a string"),
    (str, None, "must be a string"),
    (Annotated[list[int], Field(min_length=1)], [], "must not be empty"),
    (Annotated[list[int], Field(min_length=2)], [1], "must have at least 2 items"),
    (Annotated[list[int], Field(max_length=1)], [1, 2], "must have at most 1 items"),
    (Annotated[dict[str, int], Field(max_length=1)], {"a": 1, "b": 2}, "must have at most 1 items"),
    (list[int], {}, "must be a list"),
    (dict[str, int], [], "must be an object"),
    (Inner, [], "must be an object"),
    (int, "1", "must be an integer"),
    (int, 1.5, "must be an integer"),
    (int, True, "must be an integer"),
    (float, "1", "must be a number"),
    (Annotated[float, Field(allow_inf_nan=False)], float("inf"), "must be a finite number"),
    (bool, "yes", "must be true or false"),
    (None, 1, "must be null"),
    (Annotated[int, Field(ge=1)], 0, "must be at least 1"),
    (Annotated[int, Field(gt=1)], 1, "must be more than 1"),
    (Annotated[int, Field(le=9)], 10, "must be at most 9"),
    (Annotated[int, Field(lt=9)], 9, "must be less than 9"),
    (Annotated[int, Field(multiple_of=5)], 9, "must be a multiple of 5"),
    (Literal["a", "b"], "c", "must be 'a' or 'b'"),
    (Annotated[Colour, Field(strict=False)], "green", "must be 'red' or 'blue'"),
    (AwareDatetime, 1, A_TIME),
    (AwareDatetime, datetime(2026, 7, 30), A_TIME),  # noqa: DTZ001  the fault itself
    (frozenset[int], [1], "is not valid"),
]


@pytest.mark.parametrize(("kind", "given", "sentence"), CASES)
def test_a_fault_of_each_kind(kind: Any, given: Any, sentence: str) -> None:
    with pytest.raises(ValidationError) as refused:
        validated(create_model("Given", __base__=Body, member=(kind, ...)), {"member": given})
    assert refused.value.fields["fields"] == {"member": sentence}
    assert refused.value.message == f"member: {sentence}"


def test_a_member_that_is_missing_or_unknown() -> None:
    model = create_model("Given", __base__=Body, member=(int, ...))
    with pytest.raises(ValidationError) as refused:
        validated(model, {"other": 1})
    assert refused.value.fields["fields"] == {"member": "is required", "other": "is not a known member"}
    assert validated(model, {"member": 1}) == model(member=1)


def test_a_time_with_its_zone_is_taken() -> None:
    model = create_model("Given", __base__=Body, member=(AwareDatetime, ...))
    at = datetime(2026, 7, 30, tzinfo=UTC)
    assert validated(model, {"member": at}) == model(member=at)
