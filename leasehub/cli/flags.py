"""The strict reader of the command line: what it does not know, it names and refuses."""

from leasehub.client.failures import Usage


class HelpWanted(Exception):
    """--help was given."""


class Flags(dict[str, str]):
    """The flags given, by name; a switch that was given is the empty string."""

    verb: str

    def required(self, *names: str) -> None:
        for name in names:
            if not self.get(name):
                raise Usage(f"{self.verb} needs --{name}")


def read(verb: str, arguments: list[str], *, values: tuple[str, ...], switches: tuple[str, ...] = ()) -> Flags:
    flags, rest = split(verb, arguments, values=values, switches=switches)
    if rest:
        raise Usage(f"{verb} does not take {rest[0]!r}")
    return flags


def split(
    verb: str, arguments: list[str], *, values: tuple[str, ...], switches: tuple[str, ...] = ()
) -> tuple[Flags, list[str]]:
    """The flags, and the other arguments. A value may be the next argument or follow a ``=``; one that begins
    with ``--`` must follow a ``=``, so that a forgotten value never swallows the next flag."""
    flags, rest = Flags(), []
    flags.verb = verb
    left = iter(arguments)
    for argument in left:
        if argument in ("--help", "-h"):
            raise HelpWanted
        if not argument.startswith("--"):
            rest.append(argument)
            continue
        name, equals, value = argument[2:].partition("=")
        if name in flags:
            raise Usage(f"--{name} is given twice")
        if name in switches:
            if equals:
                raise Usage(f"--{name} takes no value")
        elif name not in values:
            raise Usage(f"{verb} does not know the flag --{name}")
        elif not equals:
            value = next(left, "--")
            if value.startswith("--"):
                raise Usage(f"--{name} needs a value (one that begins with -- is written --{name}=VALUE)")
        flags[name] = value
    return flags, rest


def number(name: str, text: str) -> float:
    """A number as JavaScript's Number() reads it, which is what the older lease-cli took. ``name`` says where the
    text is from: a flag with its dashes, or a variable."""
    try:
        return _number(text.strip())
    except (ValueError, OverflowError):
        raise Usage(f"{name} must be a number, not {text!r}") from None


def _number(text: str) -> float:
    if text[:2].lower() in ("0x", "0o", "0b"):
        if "_" in text:
            raise ValueError(text)
        return float(int(text, 0))
    # float() alone would also take 1_000, nan and infinity.
    if not text.isascii() or text.strip("0123456789.eE+-"):
        raise ValueError(text)
    return float(text or "0")


def whole(name: str, text: str, *, least: int = 0, most: int = 2**53 - 1) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
        raise Usage(f"--{name} must be a whole number from {least} to {most}, not {text!r}")
    return int(text)
