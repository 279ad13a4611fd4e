"""What to do next, where the word of the server or of the machine does not say it."""

from leasehub.cli import flags
from leasehub.client.failures import Failure, NotFound, Unreachable, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

# The API says no more, so that what is not there and what is not one's own are told alike. Whoever asked knows more.
NOTHING = "There is nothing here by that name."
NOT_THERE = (
    "Is the server up? `leasehub up` starts one on this machine; LEASEHUB_URL with LEASEHUB_TOKEN, or the file that"
    " LEASEHUB_CREDENTIALS names, says which one is asked."
)
# Flag -> where to find the name of such a thing, or how there comes to be one.
WHERE = {
    "pool": "`leasehub pool apply FILE` declares one",
    "request": "`leasehub pool request --pool P` answers the id of one",
    "task": "`leasehub task put --queue Q` answers the id of one",
    "queue": "`leasehub queue status` lists them, and `leasehub task put --queue Q` makes one",
    "handoff": "`leasehub handoff inbox` lists them, and with --sent those of your own",
    "parent": "`leasehub handoff inbox` lists handoffs, and with --sent those of your own",
    "checkpoint": "`leasehub checkpoint save` answers the id of one",
    "webhook": "`leasehub webhook list` lists them",
    "delivery": "`leasehub webhook deliveries --webhook ID` lists them",
    "key": "`leasehub key list` lists them",
}
MOST_MEANT = 3
LEAST_ALIKE = 0.65


def on(verb: str, arguments: list[str], failure: Failure) -> str:
    """The failure's own words, or better ones."""
    told = str(failure)
    if isinstance(failure, NotFound) and told == NOTHING:
        return _missing(verb, arguments) or told
    # A certificate that is not trusted is another matter.
    if isinstance(failure, Unreachable) and told.startswith("cannot reach") and failure.passes:
        return f"{told}. {NOT_THERE}"
    return told


def _missing(verb: str, arguments: list[str]) -> str:
    given = _named(verb, arguments)
    if not given and verb == "checkpoint get":
        return f"There is no such checkpoint that this key may see: {WHERE['checkpoint']}."
    if not given:
        return ""
    things = " or ".join(f"{name} {value!r}" for name, value in given.items())
    return f"There is no {things} that this key may see: {'; '.join(WHERE[name] for name in given)}."


def _named(verb: str, arguments: list[str]) -> dict[str, str]:
    """The things that the command line names, by their flags."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    words = [word for argument in own for word in (argument.split("=", 1) if argument[:2] == "--" else [argument])]
    given = {name[2:]: value for name, value in zip(words, words[1:], strict=False) if name[2:] in WHERE}
    if verb.startswith("pool ") or "pool" in given:
        given.update(_pool(flags.Flags(given)))
    if verb in ("key revoke", "key rotate"):
        given["key"] = flags.split(verb, own, values=("overlap-seconds",), switches=("pretty",))[1][0]
    return given


def _pool(given: flags.Flags) -> dict[str, str]:
    """By its name, if it was a file or the environment that named it."""
    from leasehub.cli.slots import pool_of

    try:
        return {"pool": pool_of(given)}
    except Usage:
        return {}


def no_such_verb(verb: str, arguments: list[str], verbs: "Collection[str]") -> str:
    group = [known for known in verbs if known.startswith(f"{verb} ")]
    words = [verb, *arguments[:1]] if arguments and not arguments[0].startswith("-") else [verb]
    wrong = " ".join(words) if group else verb
    meant = _alike(words, group, verbs)
    guess = f"did you mean {' or '.join(repr(known) for known in meant)}? There are " if meant else ""
    return f"there is no verb {wrong!r}{': ' if guess else ', '}{guess}only: {', '.join(group or verbs)}"


def _alike(words: list[str], group: list[str], verbs: "Collection[str]") -> list[str]:
    # Seldom wanted, and slow to import.
    from difflib import get_close_matches

    if group:
        # What they have in common is no likeness.
        second = {known.split(" ", 1)[1]: known for known in group}
        return [second[known] for known in get_close_matches(" ".join(words[1:]), second, MOST_MEANT, LEAST_ALIKE)]
    both = get_close_matches(" ".join(words), verbs, MOST_MEANT, LEAST_ALIKE)
    return both or get_close_matches(words[0], verbs, MOST_MEANT, LEAST_ALIKE)
