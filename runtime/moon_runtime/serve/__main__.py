"""Serve a network over HTTP, with a page: python -m moon_runtime.serve FILE.moon [--port 8000]"""

from __future__ import annotations

import argparse
import ctypes
import logging
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np

from moon_runtime.answers import printable
from moon_runtime.serve.settings import add_options, is_loopback, settings_of


def run(arguments: argparse.Namespace) -> None:
    """Serve until stopped.

    Args:
        arguments: The file, and the options of `add_options`.

    Raises:
        ImportError: If the packages that a server needs are not installed.
        ValueError: If an option is out of range, or the file is not a packed network that answers.
        OSError: If the file cannot be read, or the address cannot be listened on.
    """
    settings = settings_of(arguments)
    try:
        from PIL import Image

        from moon_runtime.serve.app import Service
        from moon_runtime.serve.listening import Server, listen
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in ("PIL", "python_multipart", "starlette", "uvicorn"):
            raise
        raise ImportError(
            f"a server needs {name}; install it with: pip install 'moon-runtime[serve]' (in "
            "moon's repository: './runtime[serve]')"
        ) from None
    from moon_runtime.classifier import Classifier
    from moon_runtime.network import NetworkError, check_length

    _keep_memory_flat()
    logging.basicConfig(format="moon serve: %(message)s", level=logging.WARNING)
    path = Path(arguments.file)
    if not path.is_file():
        raise ValueError(f"{path}: no such .moon file")
    try:
        check_length(path)
        content = path.read_bytes()
        classifier = Classifier(content, arguments.threads, arguments.limit)
    except NetworkError as error:
        raise NetworkError(f"{path}: {error}") from None
    Image.preinit()  # imports the common formats; with the next line, the first request takes no longer than others
    classifier(np.zeros((1, *classifier.input_shape[1:], classifier.input_shape[0]), np.uint8))
    if not 0 <= arguments.port < 65536:
        raise ValueError(f"--port must be from 0 to 65535, not {arguments.port}")
    with listen(arguments.host, arguments.port) as sock:
        if settings.token is None and not is_loopback(arguments.host):
            print("moon serve: warning: everyone who can reach this machine can use it; protect it with a token "
                  "($MOON_TOKEN or --token) or a proxy", file=sys.stderr, flush=True)  # fmt: skip
        host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
        print(f"{printable(path.name)}: {len(classifier.classes)} classes, detector {printable(classifier.detector)}; "
              f"listening on http://{host}:{sock.getsockname()[1]} (Ctrl-C stops)", flush=True)  # fmt: skip
        service = Service(classifier, content, settings)
        Server(service).run([sock])
        service.batcher.stop()


def _keep_memory_flat() -> None:
    """Settings of glibc's malloc without which memory creeps up under load.

    All threads share one heap; by default each has its own, and images pass between them. Large buffers are returned to
    the system when they are freed; by default, after the first one, glibc keeps buffers of that size in the heap, where
    small ones then lie between them.
    """
    with suppress(AttributeError, OSError, TypeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-8, 1)  # M_ARENA_MAX
        mallopt(-3, 65_536)  # M_MMAP_THRESHOLD: what is larger has pages of its own


def main() -> int:
    """Parse the command line and serve; 1 and one line if that is impossible."""
    parser = argparse.ArgumentParser("python -m moon_runtime.serve", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("file", metavar="FILE.moon")
    add_options(parser)
    try:
        run(parser.parse_args())
    except (ImportError, OSError, ValueError) as error:
        print(f"moon serve: {printable(str(error))}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
