"""What is measured: a model on a backend, planned and opened under the settings of an arm."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fuseboard.backends.base import Backend, Executable
from fuseboard.backends.calibrate import compile_plan
from fuseboard.backends.registry import DEFAULT, get_backend
from fuseboard.core.device import DeviceCaps
from fuseboard.load import LoadedModel, load_model
from fuseboard.plan.build import Limits
from fuseboard.plan.plan import ExecutionPlan

if TYPE_CHECKING:
    from fuseboard.execute.engine import Engine


@dataclass(frozen=True, kw_only=True)
class EngineArgs:
    """What an engine is made from. `switches` are the differences from all off."""

    model: str
    switches: dict[str, str]
    threads: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    kv_memory: int | None = None
    load_format: str = "auto"
    backend: str = DEFAULT
    revision: str | None = None


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
        from fuseboard.execute.llm import plan_model

        limits = Limits(max_model_len=args.max_model_len, max_num_seqs=args.max_num_seqs, kv_memory=args.kv_memory)
        return plan_model(
            self.model, self.backend, preset="off", switches=args.switches, threads=args.threads, limits=limits
        )

    def open(self, args: EngineArgs) -> Opened:
        """Load the weights and make the engine of an arm."""
        from fuseboard.execute.engine import Engine

        plan = self.plan(args)
        executable = compile_plan(self.backend, plan, self.model)
        return Opened(engine=Engine(executable, plan, self.model.tokenizer), plan=plan, executable=executable)


def load_subject(args: EngineArgs) -> Subject:
    """Resolve and check the model; its weights stay unread."""
    model = load_model(args.model, revision=args.revision, load_format=args.load_format)
    backend = get_backend(args.backend)
    return Subject(model=model, backend=backend, caps=backend.capabilities(threads=args.threads))
