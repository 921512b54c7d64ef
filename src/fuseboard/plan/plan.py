"""`ExecutionPlan`: everything that is decided before the first token, frozen, printable, hashable."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from fuseboard.core.device import DeviceCaps
from fuseboard.graph.ir import Graph, Node
from fuseboard.models.spec import ModelSpec
from fuseboard.plan.context import Decision, Rewrite
from fuseboard.plan.policy import KvPolicy, RunPolicy, SchedulePolicy


@dataclass(frozen=True, kw_only=True)
class StepShape:
    """What a prepared step can hold: tokens, sequences, sampled rows; with `full_logits` it stores all logits."""

    tokens: int
    seqs: int
    rows: int
    full_logits: bool = False

    @property
    def sizes(self) -> Mapping[str, int]:
        """The symbolic sizes of the graph; attention is sized by the backend from the plan's longest context."""
        return {"T": self.tokens, "S": self.seqs, "R": self.rows, "context_tokens": 0}


@dataclass(frozen=True, kw_only=True)
class ExecutionPlan:
    """A model made ready for a device under one set of switches.

    `buckets` are the token counts for which steps are prepared; empty means that every step is prepared anew. `memory`
    gives bytes by component: weights, constants, kv, arena, workspace. `logits` names the value with the full logits.
    """

    model: str
    model_digest: str
    spec: ModelSpec
    caps: DeviceCaps
    switches: Mapping[str, str]
    graph: Graph
    logits: str
    kv: KvPolicy
    schedule: SchedulePolicy
    buckets: tuple[int, ...]
    reuse_memory: bool
    captured: bool
    run: RunPolicy
    memory: Mapping[str, int]
    nodes_built: int
    decisions: tuple[Decision, ...]
    rewrites: tuple[Rewrite, ...]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what decides the tokens and the speed; the reasons in words are left out."""
        parts = self.as_dict() | {"graph": self.graph.dump(), "threads": self.caps.threads, "isa": self.caps.isa}
        for volatile in ("decisions", "rewrites", "model", "device"):
            parts.pop(volatile)
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without the graph."""
        return {
            "model": self.model,
            "model_digest": self.model_digest,
            "spec": asdict(self.spec),
            "device": asdict(self.caps),
            "switches": dict(self.switches),
            "kv": asdict(self.kv),
            "schedule": asdict(self.schedule),
            "buckets": list(self.buckets),
            "reuse_memory": self.reuse_memory,
            "captured": self.captured,
            "run": asdict(self.run),
            "memory": dict(self.memory),
            "nodes": {"built": self.nodes_built, "planned": len(self.graph.nodes)},
            "decisions": [asdict(d) for d in self.decisions],
            "rewrites": [asdict(r) for r in self.rewrites],
        }

    def shape_for(self, tokens: int, seqs: int, rows: int, *, full_logits: bool) -> StepShape:
        """The smallest prepared shape that holds the step, or its exact shape when nothing is prepared."""
        fitting = [bucket for bucket in self.buckets if bucket >= tokens]
        if not fitting:
            return StepShape(tokens=tokens, seqs=seqs, rows=rows, full_logits=full_logits)
        most = min(fitting[0], self.schedule.max_num_seqs)
        return StepShape(tokens=fitting[0], seqs=most, rows=max(most, rows), full_logits=full_logits)

    @property
    def largest_shape(self) -> StepShape:
        """The largest step the scheduler may make."""
        most = min(self.schedule.max_step_tokens, self.schedule.max_num_seqs)
        return StepShape(tokens=self.schedule.max_step_tokens, seqs=most, rows=most)

    def nodes_for(self, shape: StepShape) -> tuple[Node, ...]:
        """The nodes of a step: a fused head is opened when all logits are wanted."""
        if not shape.full_logits:
            return self.graph.nodes
        return tuple(n for node in self.graph.nodes for n in (node.body if node.region == "lm_head" else (node,)))

    def graph_for(self, shape: StepShape) -> Graph:
        """The graph with the results that the step has to give."""
        tops = tuple(name for name in self.graph.outputs if name.startswith("top."))
        outputs = (*tops, self.logits) if shape.full_logits else self.graph.outputs
        return replace(self.graph, outputs=outputs, nodes=self.nodes_for(shape))
