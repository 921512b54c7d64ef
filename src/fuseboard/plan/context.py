"""What the passes know and what they write down."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fuseboard.core.device import DeviceCaps
from fuseboard.core.errors import PlanError
from fuseboard.graph.ir import Graph, flatten
from fuseboard.models.spec import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One choice of the plan and its reason."""

    subject: str
    choice: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Rewrite:
    """What a pass did to the graph: nodes before and after (bodies of fused nodes not counted)."""

    name: str
    before: int
    after: int


@dataclass(kw_only=True)
class PlanContext:
    """Inputs of the passes (model, device, switch values, which of them were asked for by name) and their log."""

    spec: ModelSpec
    caps: DeviceCaps
    switches: Mapping[str, str]
    explicit: frozenset[str]
    storage: Callable[[str], str]
    max_model_len: int
    decisions: list[Decision] = field(default_factory=list)
    rewrites: list[Rewrite] = field(default_factory=list)

    def decide(self, subject: str, choice: str, reason: str) -> None:
        self.decisions.append(Decision(subject=subject, choice=choice, reason=reason))

    def cannot(self, switch: str, reason: str) -> None:
        """The switch has no effect here: an error if it was asked for by name, a recorded decision otherwise."""
        if switch in self.explicit:
            raise PlanError(f"{switch}={self.switches[switch]} cannot take effect: {reason}.")
        self.decide(switch, "no effect", reason)

    def run(self, name: str, graph: Graph, rewrite: Callable[[Graph, "PlanContext"], Graph]) -> Graph:
        """Applies one pass and logs the number of nodes before and after."""
        result = rewrite(graph, self)
        self.rewrites.append(Rewrite(name=name, before=len(graph.nodes), after=len(result.nodes)))
        return result


def count_inner(graph: Graph) -> int:
    """Nodes of a step with fused nodes opened."""
    return sum(1 for node in graph.nodes for _ in flatten(node))
