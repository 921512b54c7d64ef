"""The precision policy: which storage and which activation format every matrix gets."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from fuseboard.core.errors import PlanError
from fuseboard.formats.stored import native_format
from fuseboard.formats.weights import WEIGHT_FORMATS, weight_format

_PLAIN = ("f32", "f16", "bf16")
_SCHEMES = (*_PLAIN, "w8a16", "w8a8", "w5a8", "w5a16", "w4a8", "w4a16", "native")


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Storage format of a matrix and the format its input is rounded to (`f32`: not at all)."""

    weight: str
    act: str


@dataclass(frozen=True, kw_only=True)
class PrecisionPolicy:
    """A default scheme and overrides: the last pattern that matches a tensor's name wins."""

    default: str
    overrides: tuple[tuple[str, str], ...] = ()

    def of(self, name: str, storage: str) -> Precision:
        """The precision of the matrix `name`, which the file stores as `storage`."""
        matching = [scheme for pattern, scheme in self.overrides if fnmatchcase(name, pattern)]
        return precision(matching[-1] if matching else self.default, storage)


def parse_policy(text: str) -> PrecisionPolicy:
    """Reads `SCHEME[:GROUP][;PATTERN=SCHEME[:GROUP]]...`; PlanError says what is wrong with it."""
    default, *rest = text.split(";")
    overrides = []
    for part in rest:
        pattern, equals, scheme = part.partition("=")
        if not equals or not pattern:
            raise PlanError(f"A precision override is PATTERN=SCHEME, for example lm_head.weight=w8a16, not {part!r}.")
        overrides.append((pattern, scheme))
    for scheme in (default, *(s for _, s in overrides)):
        precision(scheme, "f32")
    return PrecisionPolicy(default=default, overrides=tuple(overrides))


def precision(scheme: str, storage: str) -> Precision:
    """What a scheme such as `w4a8:g32a` or `native` means for a tensor that the file stores as `storage`."""
    head, _, group = scheme.partition(":")
    if head not in _SCHEMES or (group and head in (*_PLAIN, "native")):
        raise PlanError(f"There is no weight scheme {scheme!r}; use one of {', '.join(_SCHEMES)}, such as w4a8:g32a.")
    if head in _PLAIN:
        return Precision(weight=head, act="f32")
    if head == "native":
        name = native_format(storage)
        return Precision(weight=name, act=weight_format(name).acts[0])
    bits, act = head[:2], head[2:]
    name = bits + (group or {"w4": "g64", "w5": "g32"}.get(bits, ""))
    if name not in WEIGHT_FORMATS:
        raise PlanError(f"Scheme {scheme!r} asks for the format {name}; the formats are {', '.join(WEIGHT_FORMATS)}.")
    fitting = [a for a in weight_format(name).acts if a.startswith(f"{act}g")]
    return Precision(weight=name, act=fitting[0])
