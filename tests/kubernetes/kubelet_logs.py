"""What a kubelet answers when the API server asks for a pod's log."""

import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class LogServer:
    """Serves ``/containerLogs/NAMESPACE/POD/CONTAINER`` over https."""

    def __init__(self, folder, log_of):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                asked = urlsplit(self.path)
                *_, pod, _ = asked.path.split("/")
                path = log_of(pod)
                if not path.exists():
                    self.send_error(404)
                    return
                text = cut(path.read_bytes(), parse_qs(asked.query))
                self.send_response(200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, name="logs", daemon=True).start()

    @property
    def port(self):
        return self._server.server_address[1]

    def close(self):
        self._server.shutdown()
        self._server.server_close()


def cut(text, query):
    """The part that is asked for."""
    if "tailLines" in query:
        lines = text.splitlines(keepends=True)
        text = b"".join(lines[-int(query["tailLines"][0]) :])
    if "limitBytes" in query:
        text = text[: int(query["limitBytes"][0])]
    return text
