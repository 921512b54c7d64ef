"""Which neighbouring nodes of a step may run at the same time."""

from collections.abc import Sequence

from fuseboard.graph.ir import Node

SCRATCH_OPS = ("attention", "top_k")


def concurrent(nodes: Sequence[Node], streams: int) -> tuple[tuple[Node, ...], ...]:
    """The nodes in their order, cut into groups of at most `streams` neighbours that need nothing of each other.

    Nodes of one group may run in any order or at once, if the arena keeps all their values apart.
    """
    groups: list[list[Node]] = []
    for node in nodes:
        if groups and len(groups[-1]) < streams and all(_independent(node, other) for other in groups[-1]):
            groups[-1].append(node)
        else:
            groups.append([node])
    return tuple(map(tuple, groups))


def _independent(a: Node, b: Node) -> bool:
    if _uses_scratch(a) or _uses_scratch(b):  # there is one scratch memory a step
        return False
    return not (_memory(a.outputs) & _memory((*b.inputs, *b.outputs)) or _memory(b.outputs) & _memory(a.inputs))


def _memory(names: Sequence[str]) -> set[str]:
    """All versions of a state are one memory."""
    return {name.partition("@")[0] for name in names}


def _uses_scratch(node: Node) -> bool:
    return bool(node.body) or node.op in SCRATCH_OPS
