"""The server's addresses, over real connections: right answers, clear errors, nothing about the machine."""

from __future__ import annotations

import hashlib
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("uvicorn")

import moon_runtime
from moon_runtime.serve.describing import without_paths
from serving import Server, cases, form, get, image_bytes, post, read_answer, request_once, serve

FILE = Path(__file__).parent / "kept" / "format1.moon"
KNOWN = cases(FILE, 12)
PAGE = Path(moon_runtime.__file__).parent / "serve" / "page"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("secret-folder") / "net.moon"
    path.write_bytes(FILE.read_bytes())
    with serve(path, "--max-body-mb", 0.2, "--max-images", 4, "--max-pixels", 40_000) as found:
        yield found


@pytest.fixture(scope="module")
def api(server: Server) -> dict[str, Any]:
    return json.loads(request_once(server.port, get("/openapi.json"))[2])


def ask(server: Server, content: bytes) -> tuple[int, Any]:
    """Send a request; its status and JSON. No answer may name a path of the machine."""
    status, headers, body = request_once(server.port, content)
    assert b"secret-folder" not in body
    assert body.isascii()
    assert headers["content-type"] == "application/json"
    return status, json.loads(body)


def test_answers_are_those_of_the_network_bit_for_bit(server: Server) -> None:
    for case in KNOWN:
        assert ask(server, post(case.data, "application/octet-stream")) == (
            200, {"answers": [{"file": None} | case.answer], "drift_alarm": False},
        )  # fmt: skip
    together = form([(f"{i}.png", case.data) for i, case in enumerate(KNOWN[:4])])
    assert ask(server, together)[1]["answers"] == [{"file": f"{i}.png"} | c.answer for i, c in enumerate(KNOWN[:4])]


def test_a_body_may_come_in_chunks_and_a_connection_be_used_again(server: Server) -> None:
    data = KNOWN[0].data
    head = b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: image/png\r\ntransfer-encoding: chunked\r\n\r\n"
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (data[:7], data[7:])) + b"0\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        for _ in range(3):
            connection.sendall(head + chunks)
            status, _, body = read_answer(connection)
            assert (status, json.loads(body)["answers"]) == (200, [{"file": None} | KNOWN[0].answer])


def test_a_broken_image_does_not_stop_the_others(server: Server) -> None:
    status, body = ask(server, form([("a", KNOWN[0].data), ("b", b"no image"), ("c", KNOWN[1].data)]))
    assert status == 200
    assert body["answers"] == [
        {"file": "a"} | KNOWN[0].answer,
        {"file": "b", "error": "is not an image in a supported format"},
        {"file": "c"} | KNOWN[1].answer,
    ]


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("photo.png", "photo.png"),
        ("Ö 猫.png", "Ö 猫.png"),
        ("../../etc/passwd", "passwd"),
        ("C:\\\\fakepath\\\\x.png", "x.png"),
        ("<img src=x>\x1b[31m", "<img src=x>\x1b[31m"),
        ("x" * 500, "x" * 200),
        ("", "f0"),
    ],
)
def test_names_of_files_are_foreign_text(server: Server, sent: str, kept: str) -> None:
    assert ask(server, form([(sent, KNOWN[0].data)]))[1]["answers"][0]["file"] == kept


LARGE = image_bytes(np.zeros((300, 300), np.uint8))
SIXTEEN = image_bytes(np.zeros((9, 9), np.uint16))


@pytest.mark.parametrize(
    ("content", "status", "reason"),
    [
        (post(b"no image"), 422, "the image: is not an image in a supported format"),
        (post(KNOWN[0].data[:60]), 422, "the image: "),
        (post(LARGE), 422, "the image: is 300x300, more than the 40,000 pixels allowed"),
        (post(image_bytes(np.zeros((1, 30_000), np.uint8))), 422, "too large or too elongated"),
        (post(SIXTEEN), 422, "more than 8 bits per channel"),
        (form([("a", b"x"), ("b", b"y")]), 422, "a: is not an image in a supported format (and 1 more)"),
        (post(b""), 422, "the request contains no image"),
        (post(b"--b--\r\n", "multipart/form-data; boundary=b"), 422, "the request contains no image"),
        (post(b"abc", "text/plain"), 415, "send an image"),
        (post(b"abc", "application/x-www-form-urlencoded"), 415, "send an image"),
        (post(b"abc", "multipart/form-data"), 400, "needs a boundary"),
        (post(b"abc", "multipart/form-data; boundary=b"), 400, "is not valid multipart/form-data"),
        (post(b"--b\r\n\r\nabc", "multipart/form-data; boundary=b"), 400, "its last boundary is missing"),
        (post(b"--b\r\nx: " + b"y" * 9000, "multipart/form-data; boundary=b"), 400, "multipart"),
        (form([("a", b"x")] * 5), 413, "more than 4 images in one request"),
        (post(b"x" * 200_001), 413, "the request is larger than 200,000 bytes"),
        (post(b"", length=10**15), 413, "the request is larger than 200,000 bytes"),
        (get("/nothing"), 404, "there is nothing at this address"),
        (get("/predict"), 405, "does not take this method"),
    ],
)  # fmt: skip
def test_errors_are_clear(server: Server, api: dict[str, Any], content: bytes, status: int, reason: str) -> None:
    found, body = ask(server, content)
    assert found == status
    assert reason in body["error"]
    if content.startswith(b"POST /predict"):
        check(body, api["paths"]["/predict"]["post"]["responses"][str(status)], api)


def test_a_body_without_a_declared_size_is_limited_as_well(server: Server) -> None:
    head = b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: image/png\r\ntransfer-encoding: chunked\r\n\r\n"
    assert ask(server, head + b"30d40\r\n" + b"x" * 200_000 + b"\r\n1\r\nx\r\n")[0] == 413


@pytest.mark.parametrize(
    ("headers", "status", "reason"),
    [
        (["host: localhost:8000"], 200, ""),
        (["host: LOCALHOST"], 200, ""),
        (["host: 127.1.2.3"], 200, ""),
        (["host: [::1]:80"], 200, ""),
        (["host: rebound.example:8000"], 421, "--allow-host"),
        (["host: 127.0.0.1.example"], 421, "--allow-host"),
        (["host: localhost", "origin: http://localhost"], 200, ""),
        (["host: localhost", "origin: https://example.org", "sec-fetch-site: same-origin"], 200, ""),  # behind a proxy
        (["host: localhost", "sec-fetch-site: none"], 200, ""),
        (["host: localhost", "origin: http://localhost:81"], 403, "--allow-origin"),
        (["host: localhost", "origin: https://example.org"], 403, "--allow-origin"),
        (["host: localhost", "origin: null"], 403, "--allow-origin"),
        (["host: localhost", "origin: http://localhost", "sec-fetch-site: cross-site"], 403, "--allow-origin"),
        (["host: localhost", "sec-fetch-site: same-site"], 403, "--allow-origin"),
        (["host: localhost", "transfer-encoding: chunked"], 400, "either Content-Length or Transfer-Encoding"),
    ],
)
def test_pages_of_other_sites_and_ambiguous_requests_are_refused(
    server: Server, headers: list[str], status: int, reason: str
) -> None:
    content = post(KNOWN[0].data, "image/png", *headers).replace(b"host: localhost\r\n", b"", 1)
    found, body = ask(server, content)
    assert found == status
    assert reason in body.get("error", "")


def test_names_and_sites_can_be_allowed() -> None:
    with serve(FILE, "--allow-host", "moon.example", "--allow-origin", "https://example.org") as server:
        content = post(KNOWN[0].data, "image/png", "host: moon.example", "origin: https://example.org")
        status, headers, _ = request_once(server.port, content.replace(b"host: localhost\r\n", b"", 1))
        assert (status, headers["access-control-allow-origin"]) == (200, "https://example.org")
        assert request_once(server.port, post(KNOWN[0].data, "image/png", "origin: https://example.com"))[0] == 403


def test_a_client_is_redirected_nowhere(server: Server) -> None:
    assert ask(server, get("/model/"))[0] == 404


def test_what_the_server_says_about_itself(server: Server) -> None:
    assert ask(server, get("/health")) == (200, {"status": "ok"})
    assert ask(server, get("/ready")) == (200, {"ready": True, "needs_token": False})
    status, model = ask(server, get("/model"))
    classifier = moon_runtime.load(FILE)
    assert status == 200
    assert model["sha256"] == hashlib.sha256(FILE.read_bytes()).hexdigest()
    assert (model["classes"], model["detector"]) == (classifier.classes, classifier.detector)
    assert model["input"] == {"channels": 3, "rows": 8, "columns": 8}
    assert model["threshold"]["scores"] == classifier.thresholds.tolist()
    assert model["threshold"]["accept"] == classifier.accept
    histogram = model["calibration"]["histogram"]
    assert sum(histogram["counts"]) == len(classifier.calibration) == model["calibration"]["images"]
    assert len(histogram["edges"]) == len(histogram["counts"]) + 1
    assert model["versions"]["moon_runtime"] == moon_runtime.__version__


def test_metrics_are_those_of_prometheus(server: Server) -> None:
    def read() -> dict[str, float]:
        _, headers, body = request_once(server.port, get("/metrics"))
        assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        found, kinds = {}, set()
        for line in body.decode().splitlines():
            if line.startswith("# TYPE"):
                kinds.add(line.split()[2])
            elif not line.startswith("#"):
                name, value = re.fullmatch(
                    r'([a-z_]+(?:\{[a-z0-9_]+="[^"]*"(?:,[a-z_]+="[^"]*")*\})?) (\S+)', line
                ).groups()  # type: ignore[union-attr]
                assert re.sub(r"(_bucket|_sum|_count)?(\{.*)?$", "", name) in kinds
                found[name] = float(value)
        return found

    before = read()
    ask(server, post(KNOWN[0].data))
    ask(server, form([("a", b"x"), ("b", KNOWN[0].data)]))
    ask(server, post(b"x"))
    after = read()
    change = {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}
    assert change['moon_requests_total{path="/predict",method="POST",code="200"}'] == 2
    assert change['moon_requests_total{path="/predict",method="POST",code="422"}'] == 1
    verdict = "known" if KNOWN[0].answer["is_known"] else "unknown"
    assert change[f'moon_images_total{{verdict="{verdict}"}}'] == 2
    assert change['moon_images_total{verdict="error"}'] == 2
    assert change["moon_predict_seconds_count"] == change['moon_predict_seconds_bucket{le="+Inf"}'] == 3
    assert change["moon_batch_images_sum"] == 2
    assert after["moon_queue_images"] == after["moon_drift_alarm"] == after["moon_body_bytes"] == 0
    assert after["moon_ready"] == 1


def test_the_page_loads_nothing_from_elsewhere(server: Server) -> None:
    for path, kind in (("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript")):
        status, headers, body = request_once(server.port, get(path))
        assert (status, headers["content-type"]) == (200, f"{kind}; charset=utf-8")
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers
        addresses = set(re.findall(rb"https?://[^'\"\s)]+", body))
        assert addresses <= {b"http://www.w3.org/2000/svg"}
        assert not re.search(rb"innerHTML|insertAdjacentHTML|document\.write|eval\(| on[a-z]+=", body)


def test_a_token_protects_all_but_the_page_and_the_probes() -> None:
    with serve(FILE, "--token", "s3cret") as server:
        assert json.loads(request_once(server.port, get("/ready"))[2])["needs_token"]
        for path in ("/", "/page.js", "/page.css", "/health", "/ready"):
            assert request_once(server.port, get(path))[0] == 200
        tokens = ["Bearer s3cre", "Bearer s3cret2", "s3cret", "Bearer \xff", "bearer", ""]
        wrong = [[f"authorization: {token}"] for token in tokens]
        for given in ([], *wrong, ["authorization: Bearer x", "authorization: Bearer s3cret"]):
            for request in (
                post(KNOWN[0].data, "image/png", *given),
                *(get(p, *given) for p in ("/model", "/metrics")),
            ):
                status, headers, body = request_once(server.port, request)
                assert (status, headers["www-authenticate"]) == (401, "Bearer")
                assert "token" in json.loads(body)["error"]
        for scheme in ("Bearer", "bearer", "BEARER"):  # its case does not matter (RFC 9110)
            right = f"authorization: {scheme} s3cret"
            assert request_once(server.port, post(KNOWN[0].data, "image/png", right))[0] == 200
            assert request_once(server.port, get("/model", right))[0] == 200


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/me/weights.pt", "weights.pt"), ("/weights.pt", "weights.pt"), ("~/runs/w.pt", "w.pt"),
        ("C:\\Users\\me\\w.pt", "w.pt"), ("d:/me/w.pt", "w.pt"), ("\\\\host\\share\\w.pt", "w.pt"),
        ("/home/me/a\nb/w.pt", "w.pt"), ("weights/w.pt", "weights/w.pt"), ("./runs/a/w.pt", "./runs/a/w.pt"),
        ("https://example.org/a/w.pt", "https://example.org/a/w.pt"), ("s3://bucket/a/w.pt", "s3://bucket/a/w.pt"),
        ("images/s", "images/s"), ("50 / 50 / 0", "50 / 50 / 0"), ("", ""),
    ],
)  # fmt: skip
def test_only_absolute_paths_are_cut(text: str, shown: str) -> None:
    assert without_paths({"a": [text, 1]}) == {"a": [shown, 1]}


def resolved(schema: Any, api: dict[str, Any]) -> Any:
    while "$ref" in schema:
        found: Any = api
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        schema = found
    return schema


def check(value: Any, response: Any, api: dict[str, Any]) -> None:
    """Whether a JSON value is what a response of the description promises."""
    matches = fits(value, resolved(response, api)["content"]["application/json"]["schema"], api)
    assert matches, f"{value} is not as described"


def fits(value: Any, schema: Any, api: dict[str, Any]) -> bool:
    """Those parts of JSON Schema that the description uses."""
    schema = resolved(schema, api)
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number",
             type(None): "null"}  # fmt: skip
    kinds = schema.get("type", names[type(value)])
    own = {names[type(value)], "number" if type(value) is int else ""}
    unknown = schema.keys() - {"type", "required", "properties", "items", "anyOf", "const", "minItems", "minimum",
                               "maximum", "minLength", "maxLength", "description"}  # fmt: skip
    assert not unknown, unknown
    return (
        bool(own & set([kinds] if isinstance(kinds, str) else kinds))
        and value == schema.get("const", value)
        and all(name in value for name in schema.get("required", ()))
        and all(fits(value[k], inner, api) for k, inner in schema.get("properties", {}).items() if k in value)
        and (not isinstance(value, list) or len(value) >= schema.get("minItems", 0))
        and all(fits(inner, schema["items"], api) for inner in (value if "items" in schema else ()))
        and (value is None or schema.get("minimum", value) <= value <= schema.get("maximum", value)
             if isinstance(value, int | float) else True)
        and (not isinstance(value, str) or schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 10**9))
        and ("anyOf" not in schema or any(fits(value, inner, api) for inner in schema["anyOf"]))
    )  # fmt: skip


def test_the_description_fits_the_server(server: Server, api: dict[str, Any]) -> None:
    assert (api["openapi"], api["info"]["version"]) == ("3.1.0", moon_runtime.__version__)
    addresses = set(re.findall(r'Route\("(/[^"]*)"', (PAGE.parent / "app.py").read_text())) | {"/"}
    assert api["paths"].keys() == addresses
    text = json.dumps(api)
    for reference in set(re.findall(r'"\$ref": "([^"]*)"', text)):
        assert resolved({"$ref": reference}, api)
    operations = [operation for methods in api["paths"].values() for operation in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    assert all("description" in resolved(r, api) for o in operations for r in o["responses"].values())
    for path in ("/model", "/health", "/ready", "/openapi.json"):
        check(ask(server, get(path))[1], api["paths"][path]["get"]["responses"]["200"], api)
    answered = ask(server, form([("a", KNOWN[0].data), ("b", b"x")]))[1]
    check(answered, api["paths"]["/predict"]["post"]["responses"]["200"], api)
    assert not fits({"answers": [{"file": "a"}], "drift_alarm": False}, {"$ref": "#/components/schemas/Answers"}, api)
