"""A web application, by WSGI and by ASGI: it makes a title a part of an address. The answer says
also what the interpreter does that gives it, and in which registry.
"""

import json
import socket

import web_ops  # noqa: F401  # so that the operators are there

import mdispatch as md


def answer(asked):
    title, port = json.loads(asked)
    told = {
        "slug": md.ops.web.slug(title),
        "role": md.register_or_verify(),
        "registry": md.default_registry().address,
    }
    # Only for ask_server.py: while this worker waits, the next request goes to another one.
    with socket.create_connection(("127.0.0.1", port)) as held:
        held.recv(1)
    return json.dumps(told).encode()


def application(environ, start_response):
    asked = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
    told = answer(asked)
    start_response("200 OK", [("Content-Type", "application/json")])
    return [told]


async def asgi(scope, receive, send):
    if scope["type"] == "http":
        told = answer((await receive())["body"])
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": told})
