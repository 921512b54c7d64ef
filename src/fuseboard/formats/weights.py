"""The catalogue of storage formats: what a weight format costs and which activation formats can meet it."""

from dataclasses import dataclass

from fuseboard.core.errors import PlanError

PANEL = 16
"""Output rows of a weight panel (`kPanel` of csrc/contract.h)."""


@dataclass(frozen=True, kw_only=True)
class ActFormat:
    """How the input of a linear layer is rounded: codes of `bits` with one float32 scale for `group` columns."""

    name: str
    bits: int
    group: int

    @property
    def limit(self) -> int:
        """Largest code; 0 where nothing is rounded."""
        return 2 ** (self.bits - 1) - 1 if self.group else 0


@dataclass(frozen=True, kw_only=True)
class WeightFormat:
    """How a matrix is stored.

    `bits` a weight include the scales of its groups; `group` is the number of columns that share a scale (0: none, or
    one a row for w8); `native` is the `Fmt` of csrc/contract.h; `acts` are the activation formats it can run with, the
    default first.
    """

    name: str
    bits: float
    group: int
    native: str
    acts: tuple[str, ...]

    @property
    def k_multiple(self) -> int:
        """Columns are padded to a multiple of this."""
        return self.group or (64 if self.native == "w8" else 1)

    @property
    def is_float(self) -> bool:
        return self.native in ("f32", "f16", "bf16")


def _grouped(native: str, bits: int, group: int, first: int) -> WeightFormat:
    act_group = min(group, 64)
    asymmetric = native == "w4a"
    other = 8 if first == 16 else 16
    return WeightFormat(
        name=f"w{bits}g{group}{'a' if asymmetric else ''}",
        bits=bits + (32 if asymmetric else 16) / group,
        group=group,
        native=native,
        acts=(f"a{first}g{act_group}", f"a{other}g{act_group}"),
    )


_FORMATS = {
    f.name: f
    for f in (
        WeightFormat(name="f32", bits=32, group=0, native="f32", acts=("f32",)),
        WeightFormat(name="f16", bits=16, group=0, native="f16", acts=("f32",)),
        WeightFormat(name="bf16", bits=16, group=0, native="bf16", acts=("f32",)),
        WeightFormat(name="w8", bits=8, group=0, native="w8", acts=("a16g64", "a8g64")),
        _grouped("w8g", 8, 32, 16),
        *(_grouped("w4", 4, group, 8) for group in (32, 64, 128)),
        *(_grouped("w4a", 4, group, 8) for group in (32, 64, 128)),
        _grouped("w5", 5, 32, 16),
    )
}

_ACTS = {
    f.name: f
    for f in (
        ActFormat(name="f32", bits=32, group=0),
        *(ActFormat(name=f"a{bits}g{group}", bits=bits, group=group) for bits in (8, 16) for group in (32, 64)),
    )
}

WEIGHT_FORMATS: tuple[str, ...] = tuple(_FORMATS)
ACT_FORMATS: tuple[str, ...] = tuple(_ACTS)


def weight_format(name: str) -> WeightFormat:
    """The format of that name; `PlanError` lists the names there are."""
    if name not in _FORMATS:
        raise PlanError(f"there is no weight format '{name}': use one of {', '.join(_FORMATS)}")
    return _FORMATS[name]


def act_format(name: str) -> ActFormat:
    """The activation format of that name; `PlanError` lists the names there are."""
    if name not in _ACTS:
        raise PlanError(f"there is no activation format '{name}': use one of {', '.join(_ACTS)}")
    return _ACTS[name]
