"""How a step runs on the device: what the switches ask for and the device can honour."""

from fuseboard.graph.ir import Graph
from fuseboard.plan.context import PlanContext
from fuseboard.plan.policy import RunPolicy
from fuseboard.plan.streams import concurrent
from fuseboard.plan.switches import switch


def run_policy(ctx: PlanContext, graph: Graph) -> RunPolicy:
    """PlanError when a switch was asked for by name that cannot take effect."""
    return RunPolicy(
        pinned=_pinned(ctx),
        streams=_streams(ctx, graph),
        prefetch_weights=_prefetch_weights(ctx),
        autotune=_wanted(ctx, "autotune"),
        huge_weights=_wanted(ctx, "weight_pages"),
        overlap=_wanted(ctx, "overlap"),
    )


def _wanted(ctx: PlanContext, name: str) -> bool:
    if ctx.switches[name] == switch(name).off:
        return False
    if name not in ctx.caps.features:
        ctx.cannot(name, f"{ctx.caps.backend} has no such thing")
        return False
    return True


def _pinned(ctx: PlanContext) -> bool:
    caps = ctx.caps
    if not _wanted(ctx, "affinity"):
        return False
    if caps.threads > len(caps.cores):
        ctx.cannot("affinity", f"{caps.threads} threads do not fit the {len(caps.cores)} processors of this process")
        return False
    where = "memory is local: there is one node"
    if caps.memory_nodes > 1:
        where = (
            f"threads fill one of {caps.memory_nodes} memory nodes before the next; pages of cache and work memory are "
            "on the node of the thread that touched them first, pages of the weights where their file was read first"
        )
    ctx.decide("affinity", f"processors {', '.join(map(str, caps.cores[: caps.threads]))}", where)
    return True


def _streams(ctx: PlanContext, graph: Graph) -> int:
    if not _wanted(ctx, "streams"):
        return 1
    streams = int(ctx.switches["streams"])
    saved = len(graph.nodes) - len(concurrent(graph.nodes, streams))
    if not saved:
        ctx.cannot("streams", "every node of the planned step needs the one before it")
        return 1
    ctx.decide("streams", f"{saved} of {len(graph.nodes)} nodes join the one before", "they are independent")
    return streams


def _prefetch_weights(ctx: PlanContext) -> bool:
    if not _wanted(ctx, "weight_prefetch"):
        return False
    if ctx.caps.threads == 1:
        ctx.cannot("weight_prefetch", "a single thread never waits for another")
        return False
    return True
