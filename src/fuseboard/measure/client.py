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
from dataclasses import dataclass, field

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
    and `n_in_sent` is the client's. At `end_ns` the next request could take its place.
    """

    n_in_sent: int
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
        """How long after its scheduled time the request was sent, milliseconds; None in a closed loop."""
        return None if self.due_ns is None else (self.sent_ns - self.due_ns) / 1e6


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
    """Send every request at its time, at most `concurrency` in flight; a failed one is a record with an error."""
    slots = asyncio.Semaphore(concurrency) if concurrency else contextlib.nullcontext()
    start_ns, start_busy = time.monotonic_ns(), time.process_time()

    async def one(request: HttpRequest) -> HttpRecord:
        due_ns = None if request.arrival_s is None else start_ns + round(request.arrival_s * 1e9)
        if due_ns is not None:
            await asyncio.sleep((due_ns - time.monotonic_ns()) / 1e9)
        async with slots:
            record = await send(http, target, request, due_ns)
        if progress:
            progress(record)
        return record

    with frozen_heap():
        records = tuple(await asyncio.gather(*map(one, requests)))
    end_ns, busy = time.monotonic_ns(), time.process_time() - start_busy
    cell = CellRecord(name=name, concurrency=concurrency, start_ns=start_ns, end_ns=end_ns, requests=records)
    return Load(cell=cell, requests=records, busy=busy * 1e9 / (end_ns - start_ns))


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
    """One request and its whole answer. Never raises for what the server or the network does."""
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
        answer.error = answer.error or f"no complete answer within {target.timeout_s:g} s"
    except aiohttp.ClientResponseError as error:
        answer.error = f"the response is not HTTP: {shortened(error.message)}"
    except (aiohttp.ClientError, OSError) as error:
        answer.error = answer.error or shortened(f"{type(error).__name__}: {error}")
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
        answer.error = await refusal(response)
        return
    parser = EventParser()
    try:
        async for piece in response.content.iter_any():
            now_ns = time.monotonic_ns()
            for event in parser.feed(piece):
                answer.take(event, now_ns)
            if answer.over:
                break
    except aiohttp.ClientPayloadError:
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
