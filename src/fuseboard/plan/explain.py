"""The plan in words and as JSON: decisions with reasons, rewrites, memory by component, cost and limit of a step."""

from collections.abc import Mapping
from typing import Any

from fuseboard.plan.context import count_inner
from fuseboard.plan.cost import decode_sizes, step_cost
from fuseboard.plan.plan import ExecutionPlan


def plan_report(plan: ExecutionPlan, *, batch: int = 1, context: int | None = None) -> dict[str, Any]:
    """`plan.as_dict()` with the cost and the roofline limit of a decode step of `batch` sequences."""
    context = min(context or 512, plan.schedule.max_model_len)
    cost = step_cost(plan.graph, plan.kv, decode_sizes(batch, context))
    seconds = cost.seconds(plan.caps)
    return plan.as_dict() | {
        "digest": plan.digest,
        "decode_step": {
            "batch": batch,
            "context": context,
            "weight_bytes": cost.weight_bytes,
            "kv_bytes": cost.kv_bytes,
            "activation_bytes": cost.activation_bytes,
            "operations": cost.operations,
            "limit_ms": None if seconds is None else seconds * 1e3,
            "limit_tokens_per_s": None if seconds is None else batch / seconds,
        },
    }


def explain(
    plan: ExecutionPlan, *, measured: Mapping[str, int] | None = None, batch: int = 1, context: int | None = None
) -> str:
    """The plan as text for a terminal; `measured` bytes by component stand beside the planned ones."""
    report = plan_report(plan, batch=batch, context=context)
    sections = [
        f"{plan.model} on {plan.caps.backend} ({plan.caps.isa}, {plan.caps.threads} threads), plan {plan.digest[:12]}",
        _table("Switches", [(name, value) for name, value in plan.switches.items()]),
        _table("Decisions", [(d.subject, f"{_short(d.choice)}  ({d.reason})") for d in plan.decisions]),
        _table("Rewrites (nodes before -> after)", _rewrites(plan)),
        _table("Memory", _memory(plan, measured)),
        _table("One decode step", _step(report["decode_step"])),
    ]
    return "\n\n".join(sections)


def _table(title: str, rows: list[tuple[str, str]]) -> str:
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join([title, *(f"  {name:<{width}}  {text}" for name, text in rows)])


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _rewrites(plan: ExecutionPlan) -> list[tuple[str, str]]:
    rows = [(r.name, f"{r.before} -> {r.after}") for r in plan.rewrites if r.before != r.after]
    inner = count_inner(plan.graph)
    return [*rows, ("in all", f"{plan.nodes_built} -> {len(plan.graph.nodes)} nodes a step ({inner} inside)")]


def _memory(plan: ExecutionPlan, measured: Mapping[str, int] | None) -> list[tuple[str, str]]:
    def line(planned: int | None, name: str) -> str:
        text = f"{planned / 1e6:10.1f} MB" if planned is not None else f"{'':>13}"
        return f"{text}  measured {measured[name] / 1e6:10.1f} MB" if measured and name in measured else text

    rows = [(name, line(size, name)) for name, size in plan.memory.items()]
    rows += [(name, line(None, name)) for name in measured or {} if name not in plan.memory]
    return [*rows, ("planned in all", f"{sum(plan.memory.values()) / 1e6:10.1f} MB")]


def _step(step: Mapping[str, Any]) -> list[tuple[str, str]]:
    limit = step["limit_tokens_per_s"]
    return [
        ("context", f"{step['context']} tokens, batch {step['batch']}"),
        ("weights read", f"{step['weight_bytes'] / 1e6:10.2f} MB"),
        ("cache read and written", f"{step['kv_bytes'] / 1e6:10.2f} MB"),
        ("activations moved", f"{step['activation_bytes'] / 1e6:10.2f} MB"),
        ("operations", f"{step['operations'] / 1e9:10.3f} G"),
        (
            "roofline limit",
            f"{limit:10.1f} tokens/s" if limit else "unknown: no ceilings measured here yet (fuseboard doctor)",
        ),
    ]
