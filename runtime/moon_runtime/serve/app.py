"""The addresses of a server, as a Starlette application."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import moon_runtime
from moon_runtime.answers import Answer
from moon_runtime.classifier import Classifier
from moon_runtime.serve.batching import Batcher
from moon_runtime.serve.bodies import Budget, ClientGone, Upload, read_uploads
from moon_runtime.serve.describing import describe_model
from moon_runtime.serve.metrics import MEDIA_TYPE, Metrics, resident_bytes
from moon_runtime.serve.refusals import Refused, unavailable
from moon_runtime.serve.settings import Settings
from moon_runtime.serve.watching import Watch

_log = logging.getLogger("moon_runtime.serve")
_PAGE = {"/": ("page.html", "text/html"), "/page.css": ("page.css", "text/css"),
         "/page.js": ("page.js", "text/javascript")}  # fmt: skip
_PROBES = {"/health", "/ready"}  # whatever the load and the Host
_OPEN = {*_PAGE, *_PROBES}  # without the token
_METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"}
_CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "media-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = [
    (b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"), (b"cache-control", b"no-store"),
    (b"cross-origin-resource-policy", b"same-origin"), (b"content-security-policy", _CONTENT_POLICY.encode()),
    (b"permissions-policy", b"camera=(self), microphone=(), geolocation=()"),
]  # fmt: skip


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON in ASCII: foreign text, such as the names of files, cannot control a terminal."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Response(text, status, headers, "application/json")


class Service:
    """An ASGI application that answers about images.

    Args:
        classifier: The model.
        content: The bytes of its file, for its digest.
        settings: The limits.

    Attributes:
        in_flight: Requests for answers that were accepted and are not answered.
        is_ready: Whether new ones are accepted.
    """

    def __init__(self, classifier: Classifier, content: bytes, settings: Settings) -> None:
        self.settings, self.metrics = settings, Metrics()
        self.watch = Watch(classifier.calibration, settings.false_alarm)
        self.batcher = Batcher(classifier, settings, self.metrics, self.watch)
        self.in_flight, self.is_ready = 0, True
        self._budget = Budget(settings.max_memory)
        self._started = time.time()
        self._token = None if settings.token is None else settings.token.encode()
        model = describe_model(classifier, content, settings)
        self._info = {"sha256": model["sha256"], "detector": classifier.detector,
                      "version": moon_runtime.__version__}  # fmt: skip
        self._model = _json(model)
        folder = files("moon_runtime.serve") / "page"
        self._files = {path: Response((folder / name).read_bytes(), media_type=kind)
                       for path, (name, kind) in _PAGE.items()}  # fmt: skip
        api = (folder / "openapi.json").read_text(encoding="utf-8").replace("VERSION", moon_runtime.__version__)
        self._openapi = Response(api, media_type="application/json")
        routes = [Route(path, self._file) for path in _PAGE]
        routes += [
            Route("/predict", self._predict, methods=["POST"]), Route("/health", self._health),
            Route("/ready", self._ready), Route("/metrics", self._metrics), Route("/model", self._describe),
            Route("/openapi.json", self._api),
        ]  # fmt: skip
        self.paths = {route.path for route in routes}
        cors = Middleware(CORSMiddleware, allow_origins=list(settings.allow_origin), allow_methods=["GET", "POST"],
                          allow_headers=["authorization", "content-type"])  # fmt: skip
        self._app = Starlette(routes=routes, middleware=[cors] * bool(settings.allow_origin), exception_handlers={
            HTTPException: self._http_error, Refused: self._refusal, Exception: self._failure,
        })  # fmt: skip
        self._app.router.redirect_slashes = False  # it would redirect to whatever Host the client names

    async def when_full(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request of a connection beyond the limit, which is closed afterwards: only probes are served."""
        scope["state"]["is_full"] = True
        await self(scope, receive, send)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request: check where it comes from, add headers, count it; an unforeseen error is a 503."""
        started, status = time.perf_counter(), 499  # the client was gone

        async def send_counted(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *_HEADERS]
                if not self.is_ready or "is_full" in scope["state"]:
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        path = scope["path"]
        try:
            self._check(scope)
            await self._app(scope, receive, send_counted)
        except Refused as refusal:
            await _refused(refusal)(scope, receive, send_counted)
        except asyncio.CancelledError:  # the server ends, and this request took too long
            if status == 499:
                await _refused(unavailable("the server is stopping; try again"))(scope, receive, send_counted)
        except Exception:
            _log.exception("a request to %s failed", path if path in self.paths else "an unknown path")
        finally:
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self.metrics.requests[path if path in self.paths else "other", method, status] += 1
            if path == "/predict":
                self.metrics.seconds.add(time.perf_counter() - started)

    def _check(self, scope: Any) -> None:
        """Whether the request is meant for this server, by someone who may send it; raises `Refused`."""
        path = scope["path"]
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if {"content-length", "transfer-encoding"} <= headers.keys():  # where a proxy may see the end elsewhere
            raise Refused(400, "a request has either Content-Length or Transfer-Encoding", is_last=True)
        if path in _PROBES:
            return
        if "is_full" in scope["state"]:
            raise unavailable("too many connections; try again")
        host, origin, site = (headers.get(name, "") for name in ("host", "origin", "sec-fetch-site"))
        if not self.settings.is_own_name(host):  # a page may rebind its name to this address
            raise Refused(421, "the Host of the request is not this server's; the option --allow-host allows it")
        is_own = site in ("same-origin", "none") if site else origin in ("", f"http://{host}", f"https://{host}")
        if scope["method"] == "POST" and not is_own and origin not in self.settings.allow_origin:
            raise Refused(403, "the request comes from a page of another site; the option --allow-origin allows it")
        if path not in _OPEN and scope["method"] != "OPTIONS" and not self._has_token(scope):
            refusal = Refused(401, "this server needs a token: Authorization: Bearer TOKEN")
            refusal.headers["www-authenticate"] = "Bearer"
            raise refusal

    def _has_token(self, scope: Any) -> bool:
        if self._token is None:
            return True
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            return False
        scheme, _, token = given[0].partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token)

    async def _predict(self, request: Request) -> Response:
        if not self.is_ready:
            raise unavailable("the server is stopping; try again")
        self.in_flight += 1
        reserved, client = 0, request.scope["client"][0]
        try:
            headers = dict(request.scope["headers"])
            uploads, reserved = await read_uploads(headers, request.receive, self.settings, self._budget, client)
            results = await self.batcher.answer(uploads, client)
        except ClientGone:
            return Response(status_code=499)  # nobody reads it
        finally:
            self.in_flight -= 1
            self._budget.give_back(reserved, client)
        return self._answered(uploads, results)

    def _answered(self, uploads: list[Upload], results: list[Answer | str]) -> Response:
        """All answers; an error if there is none."""
        answers = [
            {"file": upload.name} | ({"error": result} if isinstance(result, str) else result.as_json())
            for upload, result in zip(uploads, results, strict=True)
        ]
        body: dict[str, Any] = {"answers": answers, "drift_alarm": self.watch.alarm}
        if all(isinstance(result, str) for result in results):
            several = "" if len(results) == 1 else f" (and {len(results) - 1} more)"
            return _json({"error": f"{uploads[0].name or 'the image'}: {results[0]}{several}"} | body, 422)
        return _json(body)

    async def _file(self, request: Request) -> Response:
        return self._files[request.scope["path"]]

    async def _health(self, request: Request) -> Response:
        return _json({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        if not self.is_ready:
            raise unavailable("the server is stopping")
        return _json({"ready": True, "needs_token": self._token is not None})

    async def _describe(self, request: Request) -> Response:
        return self._model

    async def _api(self, request: Request) -> Response:
        return self._openapi

    async def _metrics(self, request: Request) -> Response:
        gauges = {
            "moon_queue_images": ("Images that wait for their answer", self.batcher.waiting),
            "moon_requests_in_flight": ("Requests that wait for their answer", self.in_flight),
            "moon_body_bytes": ("Memory of the requests that are being read or answered", self._budget.used),
            "moon_drift_alarm": ("1 if scores differ from those of the calibration images", self.watch.alarm),
            "moon_drift_capital": ("Evidence of a change; an alarm is raised at 1 / --false-alarm", self.watch.capital),
            "moon_ready": ("1 if requests are accepted", self.is_ready),
            "process_resident_memory_bytes": ("Resident memory", resident_bytes()),
            "process_start_time_seconds": ("When the process started, in seconds since 1970", self._started),
        }
        return Response(self.metrics.text(gauges, self._info), media_type=MEDIA_TYPE)

    async def _refusal(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        return _refused(error)

    async def _http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        reasons = {404: "there is nothing at this address; / is a page, /openapi.json lists the others",
                   405: "this address does not take this method"}  # fmt: skip
        return _json({"error": reasons.get(error.status_code, error.detail)}, error.status_code,
                     dict(error.headers or {}))  # fmt: skip

    async def _failure(self, request: Request, error: Exception) -> Response:
        return _refused(unavailable("something failed; try again"))


def _refused(refusal: Refused) -> Response:
    return _json({"error": refusal.reason}, refusal.status, refusal.headers)
