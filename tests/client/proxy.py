"""A proxy between a client and a real server that loses, delays and refuses on demand.

``faults`` are functions that see each request first: one that returns True has dealt with it.
"""

import http.client
import socket
import threading
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

NOT_PASSED_ON = {"connection", "transfer-encoding", "content-length", "date", "server"}


class Proxy(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, url):
        super().__init__(("127.0.0.1", 0), Handler)
        self.upstream = urlsplit(url).netloc
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.faults = []
        self.seen = []

    def handle_error(self, request, client_address):
        """A client that went away is what these tests are about."""

    def of(self, method, path):
        """How often it was asked for."""
        return sum(seen == (method, path) for seen in self.seen)

    def once(self, fault, *, path=""):
        """The next request of that path meets the fault."""
        met = threading.Event()

        def first(handler):
            if met.is_set() or path not in handler.path:
                return False
            met.set()
            return fault(handler)

        self.faults.append(first)
        return met

    @contextmanager
    def away(self):
        """Every connection is broken off before the request gets through."""
        self.faults.append(hang_up)
        try:
            yield
        finally:
            self.faults.remove(hang_up)


@contextmanager
def proxying(url):
    proxy = Proxy(url)
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()


def hang_up(handler):
    handler.hang_up()
    return True


def lose_answer(handler):
    """What was asked for is done, and nobody hears of it."""
    handler.ask()
    handler.hang_up()
    return True


def unavailable(handler):
    error = {"code": "UNAVAILABLE", "message": "Not just now.", "retry_after_ms": 60}
    handler.reply_json(503, {"error": error}, {"Retry-After": "1"})
    return True


def too_many(handler):
    error = {"code": "QUOTA_EXCEEDED", "message": "Too many.", "retry_after_ms": 60}
    handler.reply_json(429, {"error": error}, {"Retry-After": "1"})
    return True


def bad_gateway(handler):
    handler.reply(502, [], b"<html>nginx</html>")
    return True


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def log_message(self, *arguments):
        pass

    def handle_request(self):
        self.body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.seen.append((self.command, self.path.partition("?")[0]))
        if not any(fault(self) for fault in list(self.server.faults)):
            self.reply(*self.ask())

    do_GET = do_POST = do_PUT = do_DELETE = handle_request

    def ask(self):
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        with closing(http.client.HTTPConnection(self.server.upstream, timeout=60)) as connection:
            connection.request(self.command, self.path, self.body, headers)
            response = connection.getresponse()
            content = response.read()
        passed_on = [pair for pair in response.getheaders() if pair[0].lower() not in NOT_PASSED_ON]
        return response.status, passed_on, content

    def reply(self, status, headers, content):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def reply_json(self, status, document, headers):
        import json

        content = json.dumps(document).encode()
        self.reply(status, [("Content-Type", "application/json"), *headers.items()], content)

    def hang_up(self):
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
