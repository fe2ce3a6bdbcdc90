"""Train from a bucket, die in the middle of an epoch, and go on as if nothing had happened.

Run it: ``python examples/training/train.py`` (needs torch, moto and the backend forebay-s3; no account). It starts an
S3 server with a dataset in it, trains without a break, then trains again in a process that is killed, and once more
from the checkpoint that it left; both ways end with the same model, to the bit.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from bucket import bucket, write_digits
from model import collate, make_model
from torch.nn.functional import cross_entropy

from forebay.torch import StreamingDataLoader, StreamingDataset

EPOCHS, BATCH = 3, 32


def train(url: str, options: dict[str, object], folder: Path, *, die_at: int | None) -> None:
    """Train to the end, from the checkpoint in ``folder`` where there is one; or die at a step."""
    dataset = StreamingDataset(url, cache_dir=folder / "cache", options=options, shuffle=True, seed=1)
    loader = StreamingDataLoader(dataset, batch_size=BATCH, collate_fn=collate)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    checkpoint = folder / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]
        print(f"goes on at step {step}, in epoch {dataset.epoch}")
    while dataset.epoch < EPOCHS:
        for pictures, labels in loader:
            loss = cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if step % 5 == 0:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "loader": loader.state_dict(),
                    "step": step,
                }
                torch.save(state, checkpoint.with_suffix(".new"))
                os.replace(checkpoint.with_suffix(".new"), checkpoint)  # whole, or not at all
        print(f"epoch {dataset.epoch - 1} ended at step {step} with a loss of {loss:.3f}")
    torch.save(model.state_dict(), folder / "model.pt")
    print(f"{loader.stats().items} items, {loader.stats().chunks_fetched} chunks fetched")


def run(url: str, options: dict[str, object], folder: Path, die_at: int | None = None) -> int:
    """Train in a process of its own, and return how that ended."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, __file__, "--url", url, "--options", json.dumps(options), "--folder", str(folder)]
    return subprocess.run(command + (["--die-at", str(die_at)] if die_at else []), check=False, timeout=120).returncode


def main() -> None:
    """Train with and without a break, and compare."""
    with tempfile.TemporaryDirectory() as place, bucket() as (root, options):
        url = f"{root}/digits"
        write_digits(url, options, count=1000, seed=0)
        assert run(url, options, Path(place, "straight")) == 0
        assert run(url, options, Path(place, "broken"), die_at=48) == -signal.SIGKILL
        print("killed in the middle of an epoch")
        assert run(url, options, Path(place, "broken")) == 0
        one, other = (torch.load(Path(place, name, "model.pt")) for name in ("straight", "broken"))
        assert all(torch.equal(one[name], other[name]) for name in one)
        print("both ways end with the same model")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--url")
    parser.add_argument("--options", type=json.loads)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--die-at", type=int)
    arguments = parser.parse_args()
    if arguments.url is None:
        main()
    else:
        train(arguments.url, arguments.options, arguments.folder, die_at=arguments.die_at)
