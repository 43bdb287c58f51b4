"""A web application that counts the words it is sent, by WSGI and by ASGI."""

import json

from word_ops import job


def wsgi(environ, start_response):
    text = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(job(text.decode())).encode()]


async def asgi(scope, receive, send):
    if scope["type"] == "http":
        message = await receive()
        answer = json.dumps(job(message["body"].decode())).encode()
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})
