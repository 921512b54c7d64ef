"""What is measured: a model on a backend, planned and opened under the settings of an arm."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fuseboard.backends.base import Backend, Executable
from fuseboard.backends.calibrate import compile_plan
from fuseboard.backends.registry import DEFAULT, get_backend
from fuseboard.core.device import DeviceCaps
from fuseboard.load import LoadedModel, load_model
from fuseboard.measure import plants
from fuseboard.plan.build import Limits, build_plan
from fuseboard.plan.plan import ExecutionPlan

if TYPE_CHECKING:
    from fuseboard.execute.engine import Engine


@dataclass(frozen=True, kw_only=True)
class EngineArgs:
    """What an engine is made from. `switches` are asked for by name and must take effect; `preset` lies beneath them,
    and those of its values that the model gives no use for are left off, which the plan records."""

    model: str
    switches: dict[str, str]
    preset: dict[str, str] = field(default_factory=dict)
    threads: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    kv_memory: int | None = None
    load_format: str = "auto"
    backend: str = DEFAULT
    revision: str | None = None

    @property
    def settings(self) -> dict[str, str]:
        """All differences from all off."""
        return self.preset | self.switches


@dataclass(frozen=True, kw_only=True)
class Opened:
    """An engine that is ready, its plan, and what runs its steps."""

    engine: "Engine"
    plan: ExecutionPlan
    executable: Executable


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A loaded model and the capabilities of the backend that runs it."""

    model: LoadedModel
    backend: Backend
    caps: DeviceCaps

    @property
    def profile(self) -> Mapping[str, str]:
        """The preset `on` of the backend."""
        return self.caps.profile

    def plan(self, args: EngineArgs) -> ExecutionPlan:
        """The plan of an arm; PlanError when it cannot be."""
        return build_plan(
            self.model,
            self.caps,
            self.backend.workspace,
            preset=args.preset,
            chosen=args.switches,
            limits=Limits(max_model_len=args.max_model_len, max_num_seqs=args.max_num_seqs, kv_memory=args.kv_memory),
        )

    def open(self, args: EngineArgs, plant: str = "") -> Opened:
        """Load the weights and make the engine of an arm, for the self-check with a fault planted in its steps."""
        from fuseboard.execute.engine import Engine

        plan = self.plan(args)
        executable = plants.in_steps(compile_plan(self.backend, plan, self.model), plant)
        return Opened(engine=Engine(executable, plan, self.model.tokenizer), plan=plan, executable=executable)


def load_subject(args: EngineArgs) -> Subject:
    """Resolve and check the model; its weights stay unread."""
    model = load_model(args.model, revision=args.revision, load_format=args.load_format)
    backend = get_backend(args.backend)
    return Subject(model=model, backend=backend, caps=backend.capabilities(threads=args.threads))
