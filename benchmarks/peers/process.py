"""One bounded process at a time, with the most memory it had resident."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.05
KILOBYTE = 1024


class PeerError(Exception):
    """Why a peer has no number; one sentence."""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """What a process wrote, how long it ran, and its peak resident memory in bytes."""

    out: str
    err: str
    seconds: float
    peak_bytes: int


def run(command: Sequence[str], *, timeout_s: float, cwd: Path | None = None) -> Finished:
    """Run to the end; PeerError when it fails or has to be killed, with its children, after `timeout_s`."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        start = time.monotonic()
        process = subprocess.Popen(command, stdout=out, stderr=err, cwd=cwd, start_new_session=True)
        try:
            status, peak = _wait(process, start + timeout_s)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        process.returncode = code = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - start
        out.seek(0)
        err.seek(0)
        written, errors = out.read(), err.read()
    if code:
        last = (errors.strip().splitlines() or written.strip().splitlines() or ["no message"])[-1]
        raise PeerError(f"{Path(command[0]).name} ended with code {code}: {last[:200]}")
    return Finished(out=written, err=errors, seconds=seconds, peak_bytes=peak)


def _wait(process: subprocess.Popen[bytes], deadline: float) -> tuple[int, int]:
    """(wait status, peak resident bytes): only wait4 tells the peak of a process that is gone."""
    while time.monotonic() < deadline:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            return status, usage.ru_maxrss * KILOBYTE
        time.sleep(POLL_S)
    raise PeerError("It was killed because it ran too long.")
