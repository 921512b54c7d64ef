"""Sends requests to an OpenAI-compatible server and takes the times.

One event loop, one task a request. aiohttp, because the client's own delay is part of every number: with 64 streams of
100 chunks a second each it read a chunk 2 to 6 ms after the server wrote it in 45 us of processor time, httpx 34 to
47 ms after in 75 to 175 us (medians, two cores shared with the server).
"""

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import aiohttp

from fuseboard.measure.openai_stream import Answer, message_of, shortened
from fuseboard.measure.record import CellRecord, RequestRecord
from fuseboard.measure.sse import EventParser

KEEP_ALIVE_S = 4.0
"""Idle connections are dropped before common servers close them (5 s), so that no request meets one that closes."""
DRAIN_S = 1.0
"""How long to wait after the last event for the end of the response, without which a connection is not used again."""


@dataclass(frozen=True, kw_only=True)
class HttpRequest:
    """A request ready to be sent. `arrival_s` is its time in an open loop after the start."""

    request_id: str
    body: bytes
    n_in: int
    n_out: int
    arrival_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where requests go. A request that has not ended after `timeout_s` seconds has failed."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 600.0


@dataclass(frozen=True, kw_only=True)
class HttpRecord(RequestRecord):
    """One request over HTTP, in nanoseconds of the monotonic clock.

    `first_byte_ns` is the arrival of the response's header, `chunk_ns` that of every chunk, with or without tokens.
    `token_ns` has one time a token as far as chunks tell; `usage_in` and `usage_out` are the server's counts,
    and `n_in_sent` is the client's. `queued_ns` is how long it waited for a place among those in flight; at `end_ns`
    its own was free again.
    """

    n_in_sent: int
    queued_ns: int = 0
    first_byte_ns: int | None = None
    chunk_ns: tuple[int, ...] = ()
    end_ns: int = 0
    usage_in: int | None = None
    usage_out: int | None = None
    status: int | None = None

    @property
    def n_out(self) -> int:
        return self.usage_out or len(self.token_ns)

    @property
    def knows_tokens(self) -> bool:
        """Every token's arrival is known: the server's count is that of the chunks."""
        return self.usage_out == len(self.token_ns)

    @property
    def lag_ms(self) -> float | None:
        """How late the client itself sent the request, milliseconds, its wait for a place apart; None without a
        schedule."""
        return None if self.due_ns is None else (self.sent_ns - self.due_ns - self.queued_ns) / 1e6


@dataclass(frozen=True, kw_only=True)
class Load:
    """What came of a load; `busy` is the share of one core that the client itself used meanwhile."""

    cell: CellRecord
    requests: tuple[HttpRecord, ...]
    busy: float


Progress = Callable[[HttpRecord], None]
"""Called after every request."""


def session() -> aiohttp.ClientSession:
    """Any number of connections, no compression (it would hold chunks back), no timeout but ours."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        headers={"Accept-Encoding": "identity"},
    )


async def run_load(
    http: aiohttp.ClientSession,
    target: Target,
    requests: Sequence[HttpRequest],
    *,
    name: str,
    concurrency: int | None,
    progress: Progress | None = None,
) -> Load:
    """Send every request at its time, at most `concurrency` in flight; a failed one is a record with an error.

    Cancelled (Ctrl-C), it gives the records of what had been sent; what was in flight counts as failed.
    """
    slots = asyncio.Semaphore(concurrency) if concurrency else contextlib.nullcontext()
    records: dict[str, HttpRecord] = {}
    start_ns, start_busy = time.monotonic_ns(), time.process_time()

    async def one(request: HttpRequest) -> None:
        due_ns = None if request.arrival_s is None else start_ns + round(request.arrival_s * 1e9)
        if due_ns is not None:
            await asyncio.sleep((due_ns - time.monotonic_ns()) / 1e9)
        ready_ns = time.monotonic_ns()
        async with slots:
            queued_ns = time.monotonic_ns() - ready_ns
            record = replace(await send(http, target, request, due_ns), queued_ns=queued_ns)
        records[record.request_id] = record
        if progress:
            progress(record)

    with frozen_heap():
        try:
            await asyncio.gather(*map(one, requests))
        except asyncio.CancelledError:
            if not records:
                raise
    end_ns, busy = time.monotonic_ns(), time.process_time() - start_busy
    sent = tuple(records[r.request_id] for r in requests if r.request_id in records)
    cell = CellRecord(name=name, concurrency=concurrency, start_ns=start_ns, end_ns=end_ns, requests=sent)
    return Load(cell=cell, requests=sent, busy=busy * 1e9 / (end_ns - start_ns))


@contextlib.contextmanager
def frozen_heap() -> Iterator[None]:
    """Garbage collections look only at what is made meanwhile, so that none of them stops the clock for long."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


async def send(
    http: aiohttp.ClientSession, target: Target, request: HttpRequest, due_ns: int | None = None
) -> HttpRecord:
    """One request and its whole answer; whatever stops it, the record says what had come by then."""
    answer = Answer()
    first_byte_ns: int | None = None
    status: int | None = None
    sent_ns = time.monotonic_ns()
    try:
        async with (
            asyncio.timeout(target.timeout_s),
            http.post(target.url, data=request.body, headers=target.headers, allow_redirects=False) as response,
        ):
            first_byte_ns, status = time.monotonic_ns(), response.status
            await receive(response, answer)
    except TimeoutError:
        answer.fail(f"no complete answer within {target.timeout_s:g} s")
    except asyncio.CancelledError:
        answer.fail("interrupted")
    except aiohttp.ClientResponseError as error:
        answer.fail(f"the response is not HTTP: {shortened(error.message)}")
    except (aiohttp.ClientError, OSError) as error:
        answer.fail(shortened(f"{type(error).__name__}: {error}"))
    return HttpRecord(
        request_id=request.request_id,
        n_in=request.n_in if answer.n_in is None else answer.n_in,
        n_in_sent=request.n_in,
        n_out_wanted=request.n_out,
        sent_ns=sent_ns,
        due_ns=due_ns,
        first_byte_ns=first_byte_ns,
        chunk_ns=tuple(answer.chunk_ns),
        token_ns=tuple(answer.token_ns),
        end_ns=time.monotonic_ns(),
        usage_in=answer.n_in,
        usage_out=answer.n_out,
        status=status,
        finish_reason=answer.finish_reason,
        error=answer.error,
    )


async def receive(response: aiohttp.ClientResponse, answer: Answer) -> None:
    """Read the response into the answer. Events that one read brings arrived together and get the same time."""
    if response.status // 100 != 2 or response.content_type == "application/json":
        answer.fail(await refusal(response))
        return
    parser = EventParser()
    try:
        async for piece in response.content.iter_any():
            now_ns = time.monotonic_ns()
            for event in parser.feed(piece):
                answer.take(event, now_ns)
            if answer.over:
                break
    except (aiohttp.ClientError, OSError):
        pass  # A connection that breaks off is judged like one that is closed: by what had come.
    for event in parser.close():
        answer.take(event, time.monotonic_ns())
    answer.end()
    if answer.done:
        with contextlib.suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(DRAIN_S):
                await response.content.read()


async def refusal(response: aiohttp.ClientResponse) -> str:
    """Why a response is no stream, with the server's own message."""
    body = (await response.read()).decode("utf-8", errors="replace")
    if response.status // 100 == 2 and '"error"' not in body:
        return "the server answered in one piece instead of a stream"
    moved = response.headers.get("Location")
    return f"HTTP {response.status}: {f'moved to {moved}' if moved else message_of(body) or response.reason}"
