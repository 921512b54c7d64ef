"""Where packed weights lie while an engine runs: in the mapped file, or in huge pages of this process's own."""

from collections.abc import Mapping

from fuseboard import _native
from fuseboard.backends.cpu.topology import huge_bytes
from fuseboard.formats.packed import PackedFile

HUGE_PAGE = 2 << 20


class WeightMemory:
    """Packed tensors at fixed addresses.

    A mapped file costs no copy and is shared between processes, but it has 4 KiB pages, and reading weights at memory
    speed then waits for address translation. With `huge` the file is read once into memory for which huge pages are
    asked; the mapping stays untouched, so that nothing is resident twice.
    """

    def __init__(self, packed: PackedFile, *, huge: bool) -> None:
        self._packed = packed
        self._region: _native.Region | None = None
        start = packed.address
        if huge:
            # A huge page has to start at a multiple of its size, and memory starts anywhere.
            size = packed.nbytes + -packed.nbytes % HUGE_PAGE
            self._region = _native.Region(size + HUGE_PAGE, huge=True, name="fuseboard weights")
            skipped = -self._region.address % HUGE_PAGE
            packed.read_into(self._region.view(skipped, packed.nbytes))
            start = self._region.address + skipped
        self.addresses: Mapping[str, int] = {name: start + entry.offset for name, entry in packed.entries.items()}

    @property
    def span(self) -> tuple[int, int]:
        """First address and end, whole pages, for accounts of resident memory."""
        if self._region is None:
            return self._packed.span
        end = self._region.address + self._region.bytes
        return self._region.address, end + -end % 4096

    def huge_bytes(self) -> int:
        """Bytes that really lie in huge pages, as the system reports them."""
        return 0 if self._region is None else huge_bytes(*self.span)
