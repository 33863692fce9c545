"""Paths that lead elsewhere, and requests that mean nothing: each gets an answer, none a 500."""

from itertools import product
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.deploy.serving import Server, form, image, read_all, status_of

for package in ("fastapi", "uvicorn", "httptools", "prometheus_client"):
    pytest.importorskip(package)


@pytest.fixture
def server(attacked_server: Server) -> Server:
    return attacked_server


UPWARDS = [
    "../", "..\\", "..%2f", "..%5c", "%2e%2e/", "%2e%2e%2f", "%2e%2e%5c", "..%252f", "....//",
    "%252e%252e%252f", "%c0%ae%c0%ae/", "%c0%ae%c0%ae%c0%af", "..%c0%af", "..%ef%bc%8f", "..;/",
    "%uff0e%uff0e/", "..%00/", ".%2e/", "/%2e%2e/", "..//",
]  # fmt: skip
"""One folder up, as people have written it to get past those who look for ../"""
TARGETS = ["etc/passwd", "pyproject.toml", "photos/cat/00.png", "main.js%00.png", "windows/win.ini"]
ODDITIES = [
    "//etc/passwd", "/etc/passwd", "///etc/passwd", "%2fetc%2fpasswd", "%00", "%0a", "main.js%00",
    "~root", "~/.ssh/id_rsa", "file:///etc/passwd", "C:/windows/win.ini", "C:%5cwindows", "$HOME",
    "\\\\host\\share", "./main.js/..", "page/../app.py", ".git/config", "|id", "*", "main.js%0a",
]  # fmt: skip


def traversals() -> list[str]:
    """Write ways out: encodings, depths and targets, and what fits into no such scheme."""
    grown = product((1, 3), UPWARDS, TARGETS)
    return [*ODDITIES, *(depth * up + target for depth, up, target in grown)]


def test_s6_no_path_leads_out(server: Server) -> None:
    """In addresses, ids, names of models and names of files."""
    texts = traversals()
    assert len(set(texts)) >= 200
    secrets = [b"root:", b"[project]", b"PNG", b"JFIF"]
    for text in texts:
        for prefix in ("/", "/similar/", "/models/", "/main.js/", ""):
            line = f"GET {prefix}{text} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            answer = read_all(server.raw(line.encode()))
            assert status_of(answer) in (400, 404, 422), (prefix, text, answer[:80])
            assert not any(secret in answer for secret in secrets)
        for name in (quote(text), text):
            line = f"GET /similar/0?model={name} HTTP/1.1\r\nHost: localhost\r\n"
            answer = read_all(server.raw(f"{line}Connection: close\r\n\r\n".encode()))
            assert status_of(answer) in (400, 404), (name, answer[:80])
    for start in range(0, len(texts), 16):
        files = [(text, image(0)) for text in texts[start : start + 16]]
        status, _, told = server.send_form("/predict", *files)
        assert status == 200
        assert len({str(each) for each in told["images"]}) == 1  # whatever it is called


@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(st.data())
def test_s10_garbage_gets_a_4xx(server: Server, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["bytes", "line", "query", "form"]))
    if kind == "bytes":
        junk = data.draw(st.binary(min_size=1, max_size=200)) + b"\r\n\r\n"
    elif kind == "line":
        method = data.draw(st.sampled_from([b"GET", b"POST", b"BREW", b"CONNECT", b"OPTIONS", b""]))
        path = data.draw(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"")))
        junk = method + b" /" + path + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    elif kind == "query":
        value = quote(data.draw(st.text(max_size=20)))
        name = data.draw(st.sampled_from(["top", "layer", "head", "model", "method", "view"]))
        route = data.draw(st.sampled_from(["predict", "attention"]))
        status, _, told = server.post(f"/{route}?{name}={value}", b"x")
        assert 400 <= status < 500, (name, value, told)
        return
    else:
        head, _ = form(("a", b""))
        parts = data.draw(st.lists(st.binary(max_size=60), max_size=5))
        status, _, told = server.post("/predict", b"\r\n--xYzzY".join(parts), **head)
        assert 400 <= status < 500, told
        return
    answer = read_all(server.raw(junk + b"\r\n\r\n"))
    assert answer == b"" or status_of(answer) in (200, *range(400, 500)), (junk, answer[:200])


@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
def test_s10_answers_are_as_openapi_says(server: Server, mode: str) -> None:
    """Whatever is made of our own description, rightly or wrongly, it also describes the answer."""
    schemathesis: Any = pytest.importorskip("schemathesis")
    names = ["not_a_server_error", "status_code_conformance", "content_type_conformance"]
    names.append("response_schema_conformance")
    checks = [getattr(schemathesis.checks, name) for name in names]
    schema = schemathesis.openapi.from_dict(server.ask("GET", "/openapi.json")[2])
    options = settings(
        max_examples=12, derandomize=True, database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )  # fmt: skip
    tried = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if mode == "NEGATIVE" and "similar" not in operation.path and operation.method == "get":
            continue  # nothing can be said wrongly
        cases = operation.as_strategy(generation_mode=schemathesis.GenerationMode[mode])

        @options
        @given(cases)
        def check(case: Any) -> None:
            nonlocal tried
            tried += 1
            answer = case.call(base_url=f"http://127.0.0.1:{server.port}", timeout=20)
            case.validate_response(answer, checks=checks)

        check()
    assert tried > 40


VALUES = ["-1", "1000000000", "nan", "NaN", "inf", "1e400", "%ff%fe", "%00", ""]


@pytest.mark.parametrize("value", VALUES)
def test_s10_numbers_that_are_none(server: Server, value: str) -> None:
    for path in ("/predict?top=", "/similar?top=", "/attention?layer=", "/attention?head="):
        status, _, told = server.post(path + value, image(0))
        if (path, value) == ("/attention?layer=", "-1"):
            assert status == 200
        else:
            assert (status, path[path.index("?") + 1 : -1] in told["error"]) == (422, True), path
    assert server.post(f"/predict?model={value or 'x'}", image(0))[0] == 404


def test_s10_deep_json_is_only_bytes(server: Server) -> None:
    body = b"[" * 100_000
    status, _, told = server.post("/predict", body, Content_Type="application/json")
    assert (status, told["kind"]) == (422, "not an image")
