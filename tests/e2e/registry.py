"""A registry that has one image: CRI-O can take images from nowhere else."""

from __future__ import annotations

import json
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@contextmanager
def serving(archive: Path) -> Iterator[int]:
    """Serve the image in an OCI layout's tar to whoever asks, by any name; yield the port."""
    with tarfile.open(archive) as tar:
        layout = {f"/{m.name}": tar.extractfile(m).read() for m in tar if m.isfile()}  # type: ignore[union-attr]
    (image,) = json.loads(layout["/index.json"])["manifests"]

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, _, wanted = self.path.rpartition("/")
            if wanted and kind.endswith(("/blobs", "/manifests")):
                digest = wanted if ":" in wanted else image["digest"]
                content = layout[f"/blobs/{digest.replace(':', '/')}"]
            else:
                content = b"{}"  # whether there is a registry at all
            self.send_response(200)
            if kind.endswith("/manifests"):
                self.send_header("Content-Type", image["mediaType"])
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
