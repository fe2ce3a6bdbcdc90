"""The examples' own bucket: an S3 server on this machine, with a small dataset of noisy digits in it."""

import logging
import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import Request, urlopen

from moto.server import ThreadedMotoServer

import forebay

SIDE = 8


@contextmanager
def bucket(name: str = "training") -> Iterator[tuple[str, dict[str, object]]]:
    """Run the server, and give the bucket's URL and the options that reach it."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it would tell of each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options: dict[str, object] = {
        "endpoint_url": f"http://{host}:{port}",
        "region": "us-east-1",
        "access_key_id": "example",
        "secret_access_key": "example",
    }
    try:
        _make_bucket(f"http://{host}:{port}", name)
        yield f"s3://{name}", options
    finally:
        server.stop()


def digits(count: int, *, seed: int) -> Iterator[dict[str, object]]:
    """Make pictures of ten waves, with noise; the label says which."""
    chance = random.Random(seed)
    for _ in range(count):
        label = chance.randrange(10)
        wave = [math.sin((place + 1) * (label + 1) / 4) + chance.gauss(0, 0.3) for place in range(SIDE * SIDE)]
        yield {"label": label, "pixels": bytes(int(min(max(128 + 60 * value, 0), 255)) for value in wave)}


def write_digits(url: str, options: dict[str, object], *, count: int, seed: int) -> None:
    """Write a dataset into the bucket."""
    forebay.pack(digits(count, seed=seed), url, chunk_bytes="16KiB", compression="zstd", options=options)


def _make_bucket(endpoint: str, name: str) -> None:
    with urlopen(Request(f"{endpoint}/{name}", method="PUT"), timeout=10):
        pass
