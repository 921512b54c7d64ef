"""The backends by name; each is imported when it is asked for."""

from fuseboard.backends.base import Backend
from fuseboard.core.errors import UserError

BACKENDS = ("cpu", "reference")
DEFAULT = "cpu"


def get_backend(name: str = DEFAULT) -> Backend:
    """The backend called `name`; UserError with the list of names when there is none."""
    if name == "cpu":
        from fuseboard.backends.cpu.backend import CpuBackend

        return CpuBackend()
    if name == "reference":
        from fuseboard.backends.reference.backend import ReferenceBackend

        return ReferenceBackend()
    raise UserError(f"There is no backend {name!r}; choose one of {', '.join(BACKENDS)}.")
