"""Lowering: plan nodes to instructions of a native program. One method an op or fused region, nothing model-shaped.

The address of every value is fixed here: temporaries in the arena, weights in the packed file, constants and KV blocks
in memory of their own. A fused region becomes one instruction; only what crosses its border has an address.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fuseboard import _native
from fuseboard.backends.cpu.autotune import Tiling
from fuseboard.formats.kv import kv_format
from fuseboard.formats.panels import padded_k, panel_bytes
from fuseboard.formats.weights import act_format, weight_format
from fuseboard.graph.ir import Dim, Graph, Node, elements
from fuseboard.graph.rope import inverse_frequencies
from fuseboard.plan.memory import Arena, act_buffer
from fuseboard.plan.plan import ExecutionPlan, StepShape
from fuseboard.plan.streams import concurrent

AXES: dict[str, _native.Axis] = {"T": "tokens", "S": "seqs", "R": "rows"}


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Where things lie: arena and workspace, weights and constants by name, and the KV pool of every layer."""

    arena: int
    workspace: int
    tensors: Mapping[str, int]
    pools: Mapping[int, _native.KvPool]


@dataclass(kw_only=True)
class Lowered:
    """A program, for every node its range of instructions, and arrays whose addresses the program holds."""

    program: _native.Program
    ranges: list[tuple[int, int]] = field(default_factory=list)
    kept: list[np.ndarray] = field(default_factory=list)  # type: ignore[type-arg]


def lower(plan: ExecutionPlan, shape: StepShape, arena: Arena, at: Addresses, tiling: Tiling) -> Lowered:
    """The program of a step of that shape, with its products cut into units as `tiling` says."""
    lowering = _Lowering(plan, shape, arena, at, tiling)
    program = lowering.program
    for group in concurrent(lowering.graph.nodes, plan.run.streams):
        first = len(program)
        for node in group:
            begin = len(program)
            getattr(lowering, f"_{node.region or node.op}")(node)
            lowering.lowered.ranges.append((begin, len(program)))
        if len(group) > 1:
            program.join(first, len(program))
    if plan.run.prefetch_weights:
        program.prefetch_weights()
    return lowering.lowered


class _Lowering:
    def __init__(self, plan: ExecutionPlan, shape: StepShape, arena: Arena, at: Addresses, tiling: Tiling) -> None:
        self.plan, self.shape, self.arena, self.at, self.tiling = plan, shape, arena, at, tiling
        self.graph: Graph = plan.graph_for(shape)
        self.program = _native.Program(isa=plan.caps.isa)  # type: ignore[arg-type]
        self.lowered = Lowered(program=self.program)

    # ---- operands ----

    def _address(self, name: str) -> int:
        if name in self.arena.offsets:
            return self.at.arena + self.arena.offsets[name]
        return self.at.tensors[name]

    def _columns(self, name: str) -> int:
        size = self.graph.values[name].shape[-1]
        assert isinstance(size, int)
        return size

    def _axis(self, name: str) -> _native.Axis:
        size = self.graph.values[name].shape[0]
        return AXES[size.symbol] if isinstance(size, Dim) else "one"

    def _weight(self, name: str, bias: str | None = None) -> _native.Weight:
        value = self.graph.values[name]
        n, k = (elements((size,), {}) for size in value.shape)
        fmt = weight_format(value.dtype)
        return _native.Weight(
            fmt=fmt.native,  # type: ignore[arg-type]
            address=self.at.tensors[name],
            n=n,
            k=k,
            k_pad=padded_k(fmt, k),
            panel_bytes=panel_bytes(fmt, k),
            group=fmt.group,
            bias=self.at.tensors[bias] if bias else 0,
        )

    def _weights(self, linear: Node) -> list[_native.Weight]:
        count, biases = linear.attrs["count"], linear.attrs["biases"]
        bias_of = dict(zip(biases, linear.inputs[1 + count :], strict=True))
        return [self._weight(linear.inputs[1 + i], bias_of.get(i)) for i in range(count)]

    def _act(self, name: str) -> _native.Act:
        """A value as the input of a projection or the output of a rounding."""
        return self._act_at(self._address(name), self.graph.dtype(name), name)

    def _act_at(self, address: int, dtype: str, name: str) -> _native.Act:
        fmt, rows = act_format(dtype), elements(self.graph.values[name].shape[:-1], self.shape.sizes)
        buffer = act_buffer(dtype, rows, self._columns(name))
        if fmt.group == 0:
            return _native.Act(type="f32", codes=address, ld=buffer.ld)
        return _native.Act(
            type=f"a{fmt.bits}",  # type: ignore[arg-type]
            codes=address,
            scales=address + buffer.scales,
            sums=address + buffer.sums,
            ld=buffer.ld,
            group=fmt.group,
        )

    def _scratch_act(self, linear: Node) -> _native.Act:
        """The input of a fused projection, in the workspace."""
        name = linear.inputs[0]
        return self._act_at(self.at.workspace, self.graph.dtype(name), name)

    def _tiles(self, label: str) -> dict[str, Any]:
        tiles = self.tiling(label)
        return {} if tiles is None else {"tiling": _native.Tiling(units=tiles[0], rows=tiles[1])}

    def _unary(self, node: Node) -> dict[str, int | _native.Axis]:
        x, out = node.inputs[0], node.outputs[0]
        value = self.graph.values[x]
        vector = len(value.shape) == 1
        n = elements(value.shape, {}) if vector else self._columns(x)
        axis: _native.Axis = "one" if vector else self._axis(x)
        return {"x": self._address(x), "ldx": n, "out": self._address(out), "ldo": n, "n": n, "rows": axis}

    # ---- plain nodes ----

    def _embed(self, node: Node) -> None:
        out = node.outputs[0]
        weight = self._weight(node.inputs[1])
        self.program.add_embed(node.name, weight=weight, out=self._address(out), ldo=self._columns(out))

    def _affine(self, node: Node) -> None:
        self.program.add_affine(node.name, **self._unary(node), scale=node.attrs["scale"], shift=node.attrs["shift"])  # type: ignore[arg-type]

    def _softcap(self, node: Node) -> None:
        self.program.add_softcap(node.name, **self._unary(node), cap=node.attrs["cap"])  # type: ignore[arg-type]

    def _silu(self, node: Node) -> None:
        self.program.add_activation(node.name, kind="silu", **self._unary(node))  # type: ignore[arg-type]

    def _gelu_tanh(self, node: Node) -> None:
        self.program.add_activation(node.name, kind="gelu_tanh", **self._unary(node))  # type: ignore[arg-type]

    def _binary(self, node: Node) -> dict[str, int | _native.Axis]:
        a, b = node.inputs
        n = self._columns(a)
        out = self._address(node.outputs[0])
        sides: dict[str, int | _native.Axis] = {"a": self._address(a), "lda": n, "b": self._address(b), "ldb": n}
        return sides | {"out": out, "ldo": n, "n": n, "rows": self._axis(a)}

    def _mul(self, node: Node) -> None:
        self.program.add_mul(node.name, **self._binary(node))  # type: ignore[arg-type]

    def _add(self, node: Node) -> None:
        self.program.add_add(node.name, **self._binary(node))  # type: ignore[arg-type]

    def _gather_rows(self, node: Node) -> None:
        x, out = node.inputs[0], node.outputs[0]
        n = self._columns(x)
        self.program.add_gather_rows(node.name, x=self._address(x), ldx=n, out=self._address(out), ldo=n, n=n)

    def _rms_norm(self, node: Node) -> None:
        x, weight = node.inputs
        columns, dim = self._columns(x), node.attrs["dim"]
        self.program.add_rms_norm(
            node.name,
            x=self._address(x),
            ldx=columns,
            weight=self._address(weight),
            eps=node.attrs["eps"],
            out=self._address(node.outputs[0]),
            ldo=columns,
            dim=dim,
            rows=self._axis(x),
            chunks=columns // dim,
        )

    def _quantise(self, node: Node) -> None:
        x = node.inputs[0]
        columns = self._columns(x)
        self.program.add_quantise(
            node.name, x=self._address(x), ldx=columns, k=columns, out=self._act(node.outputs[0]), rows=self._axis(x)
        )

    def _linear(self, node: Node) -> None:
        weights = self._weights(node)
        segments = [
            _native.Segment(weight=weight, out=self._address(out), ldo=self._columns(out))
            for weight, out in zip(weights, node.outputs, strict=True)
        ]
        x = node.inputs[0]
        self.program.add_linear(
            node.name,
            x=self._act(x),
            segments=segments,
            rows=self._axis(x),
            fused_qkv=len(weights) > 1,
            **self._tiles(node.name),
        )

    def _rope_angles(self, node: Node) -> None:
        dim = node.attrs["head_dim"]
        frequencies, factor = inverse_frequencies(node.attrs["rope"], dim, node.attrs["max_position"])
        self.lowered.kept.append(frequencies)
        out = self._address(node.outputs[0])
        self.program.add_rope_angles(node.name, inv_freq=frequencies.ctypes.data, factor=factor, out=out, dim=dim)

    def _angles(self, node: Node) -> dict[str, int | _native.AngleIndex]:
        return {"angles": self._address(node.inputs[1]), "index": "position" if len(node.inputs) > 2 else "row"}

    def _rope(self, node: Node) -> None:
        x, dim = node.inputs[0], node.attrs["head_dim"]
        n = self._columns(x)
        self.program.add_rope(
            node.name,
            x=self._address(x),
            ldx=n,
            out=self._address(node.outputs[0]),
            ldo=n,
            heads=n // dim,
            dim=dim,
            **self._angles(node),  # type: ignore[arg-type]
        )

    def _kv_write(self, node: Node) -> None:
        k, v, state, _ = node.inputs
        n, pool = self._columns(k), self._pool(state)
        self.program.add_kv_write(node.name, k=self._address(k), ldk=n, v=self._address(v), ldv=n, pool=pool)

    def _pool(self, state: str) -> _native.KvPool:
        return self.at.pools[int(state.partition("@")[0].partition(".")[2])]

    def _attention(self, node: Node) -> None:
        q, state = node.inputs[:2]
        n = self._columns(q)
        self.program.add_attention(
            node.name,
            kind=node.attrs["mode"],
            q=self._address(q),
            ldq=n,
            out=self._address(node.outputs[0]),
            ldo=n,
            pool=self._pool(state),
            heads=node.attrs["heads"],
            scale=node.attrs["scale"],
            softcap=node.attrs["softcap"] or 0.0,
            window=node.attrs["window"] or 0,
            workspace=self.at.workspace,
        )

    def _top_k(self, node: Node) -> None:
        logits = node.inputs[0]
        n = self._columns(logits)
        self.program.add_top_k(node.name, logits=self._address(logits), ldl=n, vocab=n, **self._top(node))

    def _top(self, node: Node) -> dict[str, int]:
        ids, top, logsumexp = (self._address(name) for name in node.outputs)
        return {"ids": ids, "top": top, "logsumexp": logsumexp, "workspace": self.at.workspace}

    # ---- fused regions ----

    def _prologue(self, inner: Mapping[str, Node], linear: Node) -> dict[str, object]:
        """Input, norm and the scratch for the normalised and rounded input of a fused projection."""
        norm = inner.get("input_norm")
        first = inner.get("gather_rows") or norm or inner.get("quantise") or linear
        x = first.inputs[0]
        return {
            "x": self._address(x),
            "ldx": self._columns(x),
            "norm": self._address(norm.inputs[1]) if norm else 0,
            "eps": norm.attrs["eps"] if norm else 0.0,
            "act": self._scratch_act(linear),
        }

    def _norm_qkv_rope(self, node: Node) -> None:
        inner = _roles(node)
        linear, dim = inner["linear"], self.plan.spec.head_dim
        q, k, v = self._weights(linear)
        ropes = [n for n in node.body if n.op == "rope"]
        norms = [n for n in node.body if n.op == "rms_norm" and n is not inner.get("input_norm")]
        q_norm, k_norm = norms if norms else (None, None)
        q_out = next(name for name in node.outputs if "@" not in name)
        write = inner["kv_write"]
        assert ropes[0].attrs["head_dim"] == dim
        self.program.add_norm_qkv_rope(
            node.name,
            **self._prologue(inner, linear),  # type: ignore[arg-type]
            q=q,
            k=k,
            v=v,
            **self._angles(ropes[0]),  # type: ignore[arg-type]
            q_out=self._address(q_out),
            ldq=self._columns(q_out),
            pool=self._pool(write.inputs[2]),
            q_norm=self._address(q_norm.inputs[1]) if q_norm else 0,
            k_norm=self._address(k_norm.inputs[1]) if k_norm else 0,
            qk_eps=q_norm.attrs["eps"] if q_norm else 0.0,
            **self._tiles(node.name),
        )

    def _swiglu(self, node: Node) -> None:
        inner = _roles(node)
        linears = [n for n in node.body if n.op == "linear"]
        act = inner.get("silu") or inner["gelu_tanh"]
        gate, up = sorted(linears, key=lambda n: n.outputs[0] != act.inputs[0])
        self.program.add_swiglu(
            node.name,
            **self._prologue(inner, gate),  # type: ignore[arg-type]
            gate=self._weights(gate)[0],
            up=self._weights(up)[0],
            activation=act.op,  # type: ignore[arg-type]
            out=self._act(node.outputs[0]),
            **self._tiles(node.name),
        )

    def _residual(self, node: Node) -> None:
        inner = _roles(node)
        linear, add, rounding = inner["linear"], inner["add"], inner.get("quantise")
        out, residual = node.outputs[0], add.inputs[0]
        x = self._act(linear.inputs[0]) if rounding is None else self._scratch_act(linear)
        if rounding is not None:
            source, columns = rounding.inputs[0], self._columns(rounding.inputs[0])
            self.program.add_quantise(
                f"{node.name}:quantise",
                x=self._address(source),
                ldx=columns,
                k=columns,
                out=x,
                rows=self._axis(source),
            )
        columns = self._columns(out)
        self.program.add_linear(
            node.name,
            x=x,
            segments=[_native.Segment(weight=self._weights(linear)[0], out=self._address(out), ldo=columns)],
            rows=self._axis(out),
            residual=self._address(residual),
            ldr=columns,
            **self._tiles(node.name),
        )

    def _lm_head(self, node: Node) -> None:
        inner = _roles(node)
        linear, cap = inner["linear"], inner.get("softcap")
        top = self._top(inner["top_k"])
        x = linear.inputs[0]
        act_bytes = act_buffer(self.graph.dtype(x), self.shape.rows, self._columns(x)).size
        self.program.add_lm_head(
            node.name,
            **self._prologue(inner, linear),  # type: ignore[arg-type]
            head=self._weights(linear)[0],
            **(top | {"workspace": self.at.workspace + act_bytes}),  # type: ignore[arg-type]
            softcap=cap.attrs["cap"] if cap else 0.0,
            **self._tiles(node.name),
        )


def _roles(node: Node) -> dict[str, Node]:
    """The nodes of a region's body by op (the first of each); the norm before the first projection is `input_norm`."""
    roles: dict[str, Node] = {}
    for inner in node.body:
        if inner.op == "rms_norm" and "linear" not in roles:
            roles["input_norm"] = inner
        roles.setdefault(inner.op, inner)
    return roles


def kv_pool(plan: ExecutionPlan, group: int, address: int, head_scales: int) -> _native.KvPool:
    """The native description of one layer's blocks."""
    layers = plan.kv.groups[group]
    return _native.KvPool(
        fmt=kv_format(plan.kv.dtype).native,  # type: ignore[arg-type]
        address=address,
        block_bytes=layers.block_bytes,
        block_size=plan.kv.block_size,
        kv_heads=layers.kv_heads,
        head_dim=layers.head_dim,
        head_scales=head_scales,
        group=group,
    )
