"""A server that says exactly what a test wrote down, and records when it was asked and when it said what.

It speaks HTTP/1.1 over raw sockets on a thread of its own, so that an answer may be cut, late, broken off or malformed
in any way. Times are of the same monotonic clock as the client's.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

Step = tuple[float, bytes]
"""Seconds to wait, then bytes to send."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer. Framing: `chunked`, `close` (ends with the connection), or `broken` (chunked, cut off at the end)."""

    steps: tuple[Step, ...] = ()
    status: str = "200 OK"
    headers: tuple[str, ...] = ("Content-Type: text/event-stream",)
    framing: str = "chunked"


@dataclass(kw_only=True)
class Served:
    """What the server saw of one request: when the whole of it was there, and when each step was written."""

    path: str
    headers: dict[str, str]
    body: Any
    received_ns: int
    written_ns: list[int] = field(default_factory=list)


Script = Callable[[Served, int], Reply]
"""The answer to a request, by what was asked and how many were asked before."""


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def text(word: str, **fields: Any) -> bytes:
    """A chunk of a completion."""
    return event({"choices": [{"index": 0, "text": word, "finish_reason": None, **fields}]})


def delta(**fields: Any) -> bytes:
    """A chunk of a chat completion."""
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": None}]})


def finish(reason: str = "length") -> bytes:
    return event({"choices": [{"index": 0, "text": "", "finish_reason": reason}]})


def usage(n_in: int, n_out: int) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": n_in, "completion_tokens": n_out}})


DONE = b"data: [DONE]\n\n"


def completion(n_in: int, n_out: int, *, first_s: float = 0.0, gap_s: float = 0.0) -> Reply:
    """A whole answer of `n_out` chunks of one token: the first after `first_s` seconds, the others `gap_s` apart."""
    words = [(gap_s if i else first_s, text(f" {i}")) for i in range(n_out)]
    return Reply(steps=(*words, (0.0, finish()), (0.0, usage(n_in, n_out)), (0.0, DONE)))


def at_once(*pieces: bytes, **fields: Any) -> Reply:
    """Everything in one write."""
    return Reply(steps=((0.0, b"".join(pieces)),), **fields)


def models(*names: str) -> Reply:
    body = json.dumps({"object": "list", "data": [{"id": name} for name in names]}).encode()
    return Reply(steps=((0.0, body),), headers=("Content-Type: application/json",), framing="close")


def failure(status: str, body: bytes) -> Reply:
    return Reply(steps=((0.0, body),), status=status, headers=("Content-Type: application/json",), framing="close")


class ScriptedServer:
    """Serves while its `with` block lasts; `served` has what it saw of every POST, in order of arrival."""

    def __init__(self, script: Script, *, models: Reply | None = None) -> None:
        self._script, self._listing = script, models
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.served: list[Served] = []
        self.connections = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._connection, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=10)

    @property
    def models(self) -> Reply:
        """The answer to every GET."""
        return self._listing or failure("404 Not Found", b'{"detail": "Not Found"}')

    async def _stop(self) -> None:
        self._server.close()
        open_connections = asyncio.all_tasks() - {asyncio.current_task()}
        for task in open_connections:
            task.cancel()
        await asyncio.gather(*open_connections, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._exchange(reader, writer):
                pass
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; False when the connection ends with it."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if method == "GET":
            reply = self.models
            served = Served(path=path, headers=headers, body=None, received_ns=time.monotonic_ns())
        else:
            served = Served(path=path, headers=headers, body=json.loads(body), received_ns=time.monotonic_ns())
            reply = self._script(served, len(self.served))
            self.served.append(served)
        await answer(writer, reply, served)
        return reply.framing == "chunked"


async def answer(writer: asyncio.StreamWriter, reply: Reply, served: Served) -> None:
    lines = [f"HTTP/1.1 {reply.status}", *reply.headers]
    lines.append("Connection: close" if reply.framing == "close" else "Transfer-Encoding: chunked")
    writer.write("\r\n".join([*lines, "", ""]).encode())
    for wait_s, data in reply.steps:
        if wait_s:
            await asyncio.sleep(wait_s)
        served.written_ns.append(time.monotonic_ns())
        writer.write(data if reply.framing == "close" else b"%x\r\n%s\r\n" % (len(data), data))
    if reply.framing == "chunked":
        writer.write(b"0\r\n\r\n")
    await writer.drain()


def cut(data: bytes, size: int) -> Iterable[Step]:
    """The bytes in pieces of `size`, each in a write of its own."""
    return [(0.001, data[i : i + size]) for i in range(0, len(data), size)]
