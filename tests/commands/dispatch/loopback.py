"""A model provider on loopback that says what a test wants, and a Codex home that knows no other."""

import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def events(*parts):
    return b"".join(
        b"event: %s\ndata: %s\n\n" % (part["type"].encode(), json.dumps(part).encode()) for part in parts
    )


def item(**fields):
    return {"type": "response.output_item.done", "item": fields}


USAGE = {
    "input_tokens": 100, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 20,
    "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 120,
}  # fmt: skip


def message(text):
    """A whole turn that ends in one agent message."""
    said = item(type="message", id="m1", role="assistant", content=[{"type": "output_text", "text": text}])
    return stream(said)


def command(cmd, workdir):
    """A turn's first half: the model wants a command run."""
    arguments = json.dumps({"cmd": cmd, "workdir": str(workdir), "yield_time_ms": 5000})
    return stream(item(type="function_call", call_id="c1", name="exec_command", arguments=arguments))


def stream(*parts):
    created = {"type": "response.created", "response": {"id": "r1"}}
    completed = {"type": "response.completed", "response": {"id": "r1", "usage": USAGE}}
    return 200, events(created, *parts, completed)


def error(status, kind, **more):
    return status, json.dumps({"error": {"type": kind, "message": "no", **more}}).encode()


class Provider:
    """Answers each POST with the next of `answers` (the last again); `silent` and `cut` stand for themselves."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                provider.requests.append(json.loads(body) if body.startswith(b"{") else body)
                answer = provider.answers.pop(0) if len(provider.answers) > 1 else provider.answers[0]
                provider._answer(self, answer)

            def do_GET(self):
                self.send_response(404)
                self.end_headers()

            def log_message(self, *args):
                pass

        self._over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def _answer(self, handler, answer):
        if answer == "silent":
            self._over.wait(30)
            return
        cut = answer == "cut"
        status, body = (
            (200, events({"type": "response.created", "response": {"id": "r1"}})) if cut else answer[:2]
        )
        handler.send_response(status)
        handler.send_header("content-type", "text/event-stream" if status == 200 else "application/json")
        for name, value in answer[2].items() if len(answer) > 2 and not cut else ():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    def close(self):
        self._over.set()
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def codex_home(folder, port):
    """A CODEX_HOME whose one provider is the loopback one; nothing else is ever tried."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.toml"), "w") as file:
        file.write(f"""model_provider = "fake"
[model_providers.fake]
name = "fake"
base_url = "http://127.0.0.1:{port}/v1"
wire_api = "responses"
env_key = "FAKE_PROVIDER_KEY"
supports_websockets = false
request_max_retries = 0
stream_max_retries = 0
stream_idle_timeout_ms = 2000
[features]
plugins = false
apps = false
unbounded_connection_retries = false
[analytics]
enabled = false
""")
    return str(folder)


def free_port():
    """A port where nobody listens."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
