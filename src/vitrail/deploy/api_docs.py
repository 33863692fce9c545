"""The page at /docs: every route with its parameters and a command to try it, without scripts."""

from __future__ import annotations

from html import escape
from typing import Any

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>vitrail: routes</title>
<link rel="icon" href="icon.svg">
<link rel="stylesheet" href="base.css">
<link rel="stylesheet" href="app.css">
</head>
<body>
<header><h1>vitrail</h1>
<p>What programs can ask of this server; <a href="openapi.json">openapi.json</a> says the same to
tools, and <a href="./">the page</a> shows it.</p></header>
<main>
"""


def make_docs(schema: dict[str, Any], address: str) -> bytes:
    """Write the OpenAPI description of the server at an address as a page."""
    parts = [_HEAD]
    for path, methods in schema["paths"].items():
        for method, route in methods.items():
            parts.append(_show_route(address, path, method.upper(), route))
    parts.append("</main>\n</body>\n</html>\n")
    return "".join(parts).encode()


def _show_route(address: str, path: str, method: str, route: dict[str, Any]) -> str:
    rows = "".join(map(_show_parameter, route.get("parameters", ())))
    listed = f"<ul>\n{rows}</ul>\n" if rows else ""
    upload = " -F file=@cat.jpg" if "requestBody" in route else ""
    shown = address.rstrip("/") + path.replace("{id}", "0")
    return (
        f'<section class="card">\n<h2><code>{method} {escape(path)}</code></h2>\n'
        f"<p>{escape(route.get('summary', ''))}</p>\n{listed}"
        f"<p><code>curl{upload} {escape(shown)}</code></p>\n</section>\n"
    )


def _show_parameter(parameter: dict[str, Any]) -> str:
    kind: dict[str, Any] = parameter.get("schema", {})
    options = [kind, *kind.get("anyOf", ())]
    types = [each["type"] for each in options if each.get("type") not in (None, "null")]
    allowed = [str(value) for each in options for value in each.get("enum", ())]
    said = " or ".join(allowed or types) or "text"
    if kind.get("default") is not None:
        said += f", default {kind['default']}"
    about = parameter.get("description", "")
    more = f": {escape(about)}" if about else ""
    return f"<li><code>{escape(parameter['name'])}</code> ({escape(said)}){more}</li>\n"
