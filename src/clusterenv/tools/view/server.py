"""The web server of `view`: the one place that needs Starlette and uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from importlib import resources
from typing import Any

import msgspec

from clusterenv.status.channel import Run, fetch, runs
from clusterenv.status.run_status import RunStatus
from clusterenv.tools.logs import why_not_here
from clusterenv.tools.view.access import Access, bearer_in
from clusterenv.tools.view.history import History
from clusterenv.tools.view.playing import Player, play
from clusterenv.tools.worker_logs import tail_of

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
    from starlette.routing import Route
except ImportError as error:
    raise ImportError("`view` needs Starlette: pip install 'clusterenv[view]'") from error

_PAGE = {"view.html": "text/html", "view.css": "text/css"}
_PAGE |= dict.fromkeys(("charts.js", "view.js"), "text/javascript")
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_LOG_LINES = 200
# A page with more unread news than this gets the whole story again.
_MOST_UNREAD = 30
_MOST_PAGES = 32
_GRACE_S = 1


class Feed:
    """Looks at the run at regular intervals, and tells every page."""

    def __init__(self, run: Run, first: RunStatus, every_s: float) -> None:
        self.run, self._every_s = run, every_s
        self.history = History()
        self.history.add(first)
        self.player = Player(run)
        self._pages: set[asyncio.Queue[bytes]] = set()

    @property
    def status(self) -> RunStatus | None:
        """The last snapshot."""
        return self.history.status

    async def watch(self) -> None:
        """Watch until the run has ended."""
        while not self.history.has_ended:
            await asyncio.sleep(self._every_s)
            status = await asyncio.to_thread(fetch, self.run)
            if status is not None:
                self._tell(_event("news", self.history.add(status)))
            elif self.run in runs():
                # The head's GIL is held, or the process is stopped.
                self._tell(_event("silent", {}))
            else:
                self.history.has_ended = True
                self._tell(_event("ended", {}))

    def _tell(self, event: bytes) -> None:
        for page in self._pages:
            is_behind = page.full()
            while is_behind and not page.empty():
                page.get_nowait()
            page.put_nowait(self._story() if is_behind else event)

    def _story(self) -> bytes:
        return _event("story", self.history.story)

    async def events(self) -> AsyncIterator[bytes]:
        """The events for one page."""
        page: asyncio.Queue[bytes] = asyncio.Queue(_MOST_UNREAD)
        self._pages.add(page)
        try:
            yield self._story()
            while event := await page.get():
                yield event
        finally:
            self._pages.discard(page)

    def close(self) -> None:
        """Let the answers to all pages end."""
        self.player.stop()
        for page in self._pages:
            while not page.empty():
                page.get_nowait()
            page.put_nowait(b"")

    @property
    def is_crowded(self) -> bool:
        """Whether no more pages can be served."""
        return len(self._pages) >= _MOST_PAGES


def _event(name: str, value: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(value))


class Guard:
    """Lets requests through that have the token and call the server by one of its names."""

    def __init__(self, app: Any, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle a request, as ASGI defines it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(Request(scope))
        await (refusal or self._app)(scope, receive, _with_headers(send))

    def _refusal(self, request: Request) -> Response | None:
        access, given = self._access, request.query_params.get("token")
        if not access.knows(request.headers.get("host", "")):
            return PlainTextResponse("clusterenv view: not called so; see --name\n", 421)
        if request.url.path == "/" and access.admits(given):
            # The token must not stay in the address, which people copy and browsers remember.
            redirect = RedirectResponse("/", 303)
            redirect.set_cookie(access.cookie, access.token, httponly=True, samesite="lax")
            return redirect
        bearer = bearer_in(request.headers.get("authorization", ""))
        if access.admits(given, bearer, request.cookies.get(access.cookie)):
            return None
        text = "clusterenv view: open the address with the token, as `view` has printed it\n"
        return PlainTextResponse(text, 401, {"WWW-Authenticate": "Bearer"})


def _with_headers(send: Any) -> Any:
    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            added = [(name.lower().encode(), text.encode()) for name, text in _HEADERS.items()]
            message["headers"] = [*message.get("headers", []), *added]
        await send(message)

    return sending


class Pages:
    """The server's answers."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    @property
    def routes(self) -> list[Route]:
        """The answers by address."""
        return [
            Route("/", self.page),
            Route("/{file}.{kind:str}", self.page),
            Route("/events", self.events),
            Route("/status", self.status),
            Route("/metrics", self.metrics),
            Route("/logs/{host}/{worker}", self.logs),
            Route("/play/{slot:int}", self.play),
        ]

    async def page(self, request: Request) -> Response:
        """A file of the page."""
        given = request.path_params
        name = f"{given['file']}.{given['kind']}" if given else "view.html"
        if name not in _PAGE:
            return PlainTextResponse("no such page\n", 404)
        text = (resources.files("clusterenv.tools.view") / "page" / name).read_bytes()
        return Response(text, media_type=_PAGE[name])

    async def events(self, request: Request) -> Response:
        """News of the run as it happens: server-sent events."""
        if self._feed.is_crowded:
            return PlainTextResponse("too many pages are open\n", 503)
        return StreamingResponse(self._feed.events(), media_type="text/event-stream")

    async def status(self, request: Request) -> Response:
        """The last snapshot, and whether the run has ended since."""
        history = self._feed.history
        assert history.status is not None
        shown = {"has_ended": history.has_ended, **msgspec.structs.asdict(history.status)}
        return Response(msgspec.json.encode(shown), media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        """The metrics for Prometheus."""
        from clusterenv.tools.view.metrics import CONTENT_TYPE, exposition

        history = self._feed.history
        assert history.status is not None
        text = exposition(history.status, history.has_ended)
        return Response(text, media_type=CONTENT_TYPE)

    async def logs(self, request: Request) -> Response:
        """The last lines that a worker has printed."""
        lines, reason = _tail(self._feed.status, **request.path_params)
        text = msgspec.json.encode({"lines": lines, "reason": reason})
        return Response(text, media_type="application/json")

    async def play(self, request: Request) -> Response:
        """Pictures of an episode as it is played: server-sent events."""
        pictures = play(self._feed.player, request.path_params["slot"])
        return StreamingResponse(pictures, media_type="text/event-stream")


def _tail(status: RunStatus | None, host: str, worker: str) -> tuple[list[str], str]:
    found = [
        (one, member)
        for one in (status.hosts if status else ())
        for member in one.workers
        if (one.name, member.name) == (host, worker)
    ]
    if not found:
        return [], f"there is no {worker} of {host} any more"
    if reason := why_not_here(*found[0]):
        return [], reason
    try:
        return tail_of(found[0][1].pid, _LOG_LINES), ""
    except (OSError, ValueError) as error:
        return [], f"the output of {worker} cannot be read: {error}"


def application(feed: Feed, access: Access) -> Any:
    """The server as an ASGI application, which also watches the run."""

    @contextlib.asynccontextmanager
    async def watching(app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(feed.watch())
        try:
            yield
        finally:
            task.cancel()

    return Guard(Starlette(routes=Pages(feed).routes, lifespan=watching), access)


class _Server(uvicorn.Server):
    """A server that does not wait for open pages when it ends."""

    def __init__(self, config: uvicorn.Config, feed: Feed) -> None:
        super().__init__(config)
        self._feed = feed

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._feed.close()
        await super().shutdown(sockets)


def serve(
    run: Run, first: RunStatus, access: Access, listener: socket.socket, every_s: float
) -> None:
    """Serve the page until Ctrl-C."""
    feed = Feed(run, first, every_s)
    config = uvicorn.Config(
        application(feed, access),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
    )
    with contextlib.suppress(KeyboardInterrupt):
        _Server(config, feed).run(sockets=[listener])
