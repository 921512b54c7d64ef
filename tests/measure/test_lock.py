"""Who waits for another measurement says for whom, once, and goes on waiting."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

HOLD = """
import sys
from fuseboard.measure.experiment import measuring_lock
with measuring_lock():
    print("held", flush=True)
    sys.stdin.readline()
"""


def holder(cache: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD],
        env=os.environ | {"FUSEBOARD_CACHE": str(cache)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def line(pipe: IO[str] | None) -> str:
    assert pipe
    return pipe.readline()


def test_who_waits_for_the_lock_says_for_whom(tmp_path: Path) -> None:
    first = holder(tmp_path)
    assert line(first.stdout) == "held\n"
    second, third = holder(tmp_path), holder(tmp_path)
    for waiting in (second, third):
        said = line(waiting.stderr)
        assert f"process {first.pid}," in said
        assert str(tmp_path / "measure.lock") in said
    second.send_signal(signal.SIGINT)
    out, _ = second.communicate(timeout=60)
    assert second.returncode != 0, "an interrupt ends the wait"
    assert "held" not in out
    _, errors = first.communicate("go on\n", timeout=60)
    assert (first.returncode, errors) == (0, ""), "the holder says nothing"
    assert line(third.stdout) == "held\n", "the wait goes on after the line"
    _, errors = third.communicate("go on\n", timeout=60)
    assert (third.returncode, errors) == (0, ""), "one line is enough"
    assert (tmp_path / "measure.lock").read_text() == ""
