"""Stands in for the web server: answers 200 to everything, or nothing where the data folder says so."""

import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path


class Ready(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments):
        pass


if (Path(sys.argv[sys.argv.index("--working-dir") + 1]) / "silent").exists():
    time.sleep(300)
port = int(sys.argv[sys.argv.index("--port") + 1])
HTTPServer(("127.0.0.1", port), Ready).serve_forever()
