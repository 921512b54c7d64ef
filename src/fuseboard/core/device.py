"""What a device can do, as data: the plan sees nothing else of a backend, so a plan can be made anywhere."""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class DeviceCaps:
    """Capabilities of one backend on one machine.

    A backend states what it can do here, never whether it should be used. `regions` are the fused regions it has
    kernels for; `head_dim_multiple` is the divisor of the head size which the fused projection needs.
    `features` are the switches of running a step that it can honour; `cores` are the processors that threads can be
    bound to, best first. Rates are measured (`fuseboard doctor`) and zero when nobody measured them yet;
    `read_bytes_per_s` is that of memory, `cache_read_bytes_per_s` that of the last cache, which holds `cache_bytes`.
    """

    backend: str
    isa: str
    threads: int
    weight_formats: tuple[str, ...]
    kv_formats: tuple[str, ...]
    regions: tuple[str, ...]
    attention: tuple[str, ...]
    graph_modes: tuple[str, ...]
    panel_rows: int = 16
    head_dim_multiple: int = 16
    features: tuple[str, ...] = ()
    cores: tuple[int, ...] = ()
    memory_nodes: int = 1
    memory_bytes: int = 0
    read_bytes_per_s: float = 0.0
    cache_bytes: int = 0
    cache_read_bytes_per_s: float = 0.0
    flops_per_s: float = 0.0
    integer_ops_per_s: float = 0.0
    profile: dict[str, str] = field(default_factory=dict)
    """Switch values of the preset `on` for this backend."""

    def read_rate(self, working_set: int) -> float:
        """Bytes a second at which steps that touch so many bytes again and again can read them at most."""
        cached = working_set <= self.cache_bytes and self.cache_read_bytes_per_s
        return cached or self.read_bytes_per_s
