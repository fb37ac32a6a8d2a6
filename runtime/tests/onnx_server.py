"""A plain server with ONNX Runtime, to compare with: the same stack, one image per request, one call per image.

python runtime/tests/onnx_server.py digits.onnx
"""

from __future__ import annotations

import json
import socket
import sys
from io import BytesIO

import numpy as np
import onnxruntime
import uvicorn
from PIL import Image
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


def application(path: str) -> Starlette:
    """An application that answers as `moon export --onnx` describes it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    wanted = session.get_inputs()[0]
    metadata = session.get_modelmeta().custom_metadata_map
    classes = json.loads(metadata["classes"])
    channels = wanted.shape[3]

    def answer(data: bytes) -> dict[str, object]:
        with Image.open(BytesIO(data)) as image:
            pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"))
        batch = pixels.reshape(1, *pixels.shape[:2], channels)
        outputs = dict(zip(names, session.run(names, {wanted.name: batch}), strict=True))
        name, known = classes[int(outputs["label"][0])], bool(outputs["known"][0])
        return {
            "file": None, "verdict": name if known else "unknown", "class": name, "is_known": known,
            "probability": float(outputs["probability"][0]), "p_value": float(outputs["p_value"][0]),
            "score": float(outputs["score"][0]),
        }  # fmt: skip

    names = ["label", "probability", "score", "known", "p_value"]

    async def predict(request: Request) -> JSONResponse:
        return JSONResponse({"answers": [await run_in_threadpool(answer, await request.body())]})

    async def ready(request: Request) -> JSONResponse:
        return JSONResponse({"ready": True})

    return Starlette(routes=[Route("/predict", predict, methods=["POST"]), Route("/ready", ready)])


def main() -> None:
    """Serve at any free port."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        print(f"listening on http://127.0.0.1:{sock.getsockname()[1]} ", flush=True)
        config = uvicorn.Config(application(sys.argv[1]), http="h11", loop="asyncio", ws="none", lifespan="off",
                                log_config=None, access_log=False)  # fmt: skip
        uvicorn.Server(config).run([sock])


if __name__ == "__main__":
    main()
