"""What a backend is to the rest: capabilities as data, scratch sizes for the plan, and a compiler of plans."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fuseboard.core.batch import StepBatch, StepOutput
from fuseboard.core.device import DeviceCaps
from fuseboard.core.weights import WeightSource
from fuseboard.graph.ir import Graph, Node
from fuseboard.graph.ops import Sizes
from fuseboard.plan.plan import ExecutionPlan


class Executable(Protocol):
    """A plan with its weights and memory, ready to run steps. Not thread-safe."""

    plan: ExecutionPlan
    """What was compiled, with the decisions that were taken meanwhile."""

    def run(self, batch: StepBatch) -> StepOutput:
        """Runs one step; the result's arrays are valid until the next one."""
        ...

    def start(self, batch: StepBatch) -> None:
        """Starts one step and returns at once; for plans whose steps overlap. The batch has to stay as it is."""
        ...

    def wait(self) -> StepOutput:
        """The result of the step that was started, once it is there; valid until the next one is started."""
        ...

    def counters(self) -> dict[str, int]:
        """Numbers that prove that a switch did something, by the names in the catalogue."""
        ...

    def memory(self) -> dict[str, int]:
        """Bytes of physical memory by component, as the system reports them now."""
        ...

    def profile(self, on: bool) -> None:
        """Switches timing of single nodes on or off and clears what was collected."""
        ...

    def node_times(self) -> Sequence[tuple[str, int, int]]:
        """(node, calls, nanoseconds) since profiling was switched on."""
        ...

    def release_blocks(self, group: int, block_ids: Sequence[int]) -> None:
        """Gives the pages of freed KV blocks back to the system."""
        ...

    def poison_blocks(self, group: int, block_ids: Sequence[int]) -> None:
        """Fills freed KV blocks with NaN (debug mode)."""
        ...

    def close(self) -> None:
        """Frees threads and memory; the executable cannot run afterwards."""
        ...


class Backend(Protocol):
    """One way to compute. It states what it can do; the plan decides what it does."""

    name: str

    def capabilities(self, *, threads: int | None = None, options: Mapping[str, str] | None = None) -> DeviceCaps:
        """What this machine offers; UserError for options it does not have."""
        ...

    def workspace(self, caps: DeviceCaps, graph: Graph, node: Node, sizes: Sizes, max_context: int) -> int:
        """Bytes of scratch memory for a node of a step of these sizes."""
        ...

    def examine(self, threads: int | None = None) -> dict[str, Any]:
        """What `fuseboard doctor` shows: facts of the machine and measured rates."""
        ...

    def compile(self, plan: ExecutionPlan, weights: WeightSource) -> Executable:
        """Loads weights in the plan's formats and prepares its steps."""
        ...
