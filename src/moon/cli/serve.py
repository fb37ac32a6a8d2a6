"""Serve a packed network over HTTP, with a page to try it. PyTorch is not needed."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from moon.cli.arguments import fraction, whole

EXAMPLES = """
examples:
  moon serve digits.moon                                     http://127.0.0.1:8000, for this machine
  MOON_TOKEN=secret moon serve digits.moon --host 0.0.0.0    for all machines that know the token
  curl -F image=@photo.png http://127.0.0.1:8000/predict
"""


def describe(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m moon_runtime.serve`, which is not imported here as it may not be installed."""
    add = parser.add_argument
    add("file", type=Path, metavar="FILE.moon", help="a packed network, written by moon pack")
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s, this machine only)")
    add("--allow-host", action="append", default=[], metavar="NAME",
        help="accept requests whose Host is NAME (default: any; with a loopback --host, only its names)")  # fmt: skip
    add("--allow-origin", action="append", default=[], metavar="ORIGIN",
        help="accept requests from pages of another site, such as https://example.org")  # fmt: skip
    add("--proxy", metavar="ADDRESS", help="address of a reverse proxy that sets X-Forwarded-For")
    add("--port", type=int, default=8000, help="port to listen on; 0: any free one (default: %(default)s)")
    add("--threads", type=whole, default=1, help="threads that compute the network (default: %(default)s)")
    add("--limit", type=float, default=1, metavar="N",
        help="allow a file that you trust N times the memory and time (default: %(default)s)")  # fmt: skip
    add("--token", default=os.environ.get("MOON_TOKEN"), metavar="SECRET",
        help="clients must send it as a bearer token (default: $MOON_TOKEN, which other users cannot see)")  # fmt: skip
    for flag, kind, default, metavar, text in (
        ("--max-batch", whole, 32, "N", "images that are computed at once"),
        ("--batch-wait-ms", float, 2.0, "MS", "how long an image waits for others that are being decoded"),
        ("--max-queue", whole, 256, "N", "images that may wait; above it, requests get 429"),
        ("--max-images", whole, 32, "N", "images in one request"),
        ("--max-body-mb", float, 16.0, "MB", "size of a request"),
        ("--max-pixels", whole, 2**24, "N", "pixels of one image"),
        ("--timeout", float, 10.0, "S", "seconds until a request that waits for its answer gets 503"),
        ("--body-timeout", float, 20.0, "S", "seconds in which a client must have sent its request"),
        ("--max-connections", whole, 512, "N", "connections at a time"),
        ("--false-alarm", fraction, 0.01, "P", "probability of a false drift alarm, for each 10,000 images"),
    ):
        shown = "%(default)s" if kind is whole else "%(default)g"
        add(flag, type=kind, default=default, metavar=metavar, help=f"{text} (default: {shown})")


def act(arguments: argparse.Namespace) -> None:
    from moon.deploy.loading import load
    from moon.errors import MissingPackage

    if arguments.file.is_dir():
        raise ValueError(f"{arguments.file}: is a folder; pack a run first (moon pack {arguments.file})")
    load(
        arguments.file, limit=arguments.limit
    )  # says if the file is damaged or moon-runtime is missing, as the other commands do
    from moon_runtime.serve.__main__ import run

    try:
        run(arguments)
    except ImportError as error:
        raise MissingPackage(str(error)) from error
