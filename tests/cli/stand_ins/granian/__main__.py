"""Stands in for the web server: answers 200 to everything."""

import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


class Ready(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments):
        pass


port = int(sys.argv[sys.argv.index("--port") + 1])
HTTPServer(("127.0.0.1", port), Ready).serve_forever()
