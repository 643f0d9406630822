"""``netreduce walk``: open the page that plays runs step by step, or write it to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def walk(
    trace: Annotated[Path | None, typer.Argument(help="A trace to play, instead of the built-in walks.")] = None,
    export: Annotated[Path | None, typer.Option(help="Write one self-contained HTML file and end.")] = None,
    port: Annotated[int, typer.Option(help="Port to serve on, 0 for any.", min=0, max=65535)] = 0,
    browser: Annotated[bool, typer.Option(help="Open a browser.")] = True,
) -> None:
    """Watch gradients move through NICs and switch, step by step: every number is from a recorded run."""
    from netreduce.errors import NetReduceError

    try:
        page = _page(trace)
        if export is not None:
            export.write_text(page, encoding="utf-8")
            typer.echo(f"{export}: {len(page) // 1024} KiB, opens in any browser")
            return
        _serve(page, port, browser)
    except (NetReduceError, OSError) as error:
        typer.echo(f"netreduce walk: {error}", err=True)
        raise typer.Exit(1) from None


def _page(trace: Path | None) -> str:
    from netreduce.trace.recording import read_trace
    from netreduce.viewer.page import render
    from netreduce.viewer.walks import record_walks, walk_of

    if trace is not None:
        return render(walk_of(read_trace(trace)))
    typer.echo("Running and recording six small runs ...", err=True)
    return render(record_walks())


def _serve(page: str, port: int, browser: bool) -> None:
    """Serve the page on this machine only, until Ctrl-C."""
    import http.server
    import webbrowser

    body = page.encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/" else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body) if self.path == "/" else 0))
            self.end_headers()
            if self.path == "/":
                self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing: one reader, one page."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        typer.echo(f"The walk is at {url} (Ctrl-C ends it)")
        if browser:
            webbrowser.open(url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("")
