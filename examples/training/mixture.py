"""Train on a mixture: three samples of one dataset for each of another, in exact proportion.

Run it: ``python examples/training/mixture.py`` (needs torch, moto and the backend forebay-s3; no account).
"""

import tempfile

import torch
from bucket import bucket, write_digits
from model import collate, make_model
from torch.nn.functional import cross_entropy

from forebay.torch import CombinedStreamingDataset, StreamingDataLoader, StreamingDataset


def main() -> None:
    """Write two datasets, and train on both at once."""
    with tempfile.TemporaryDirectory() as cache, bucket() as (root, options):
        write_digits(f"{root}/many", options, count=900, seed=1)
        write_digits(f"{root}/few", options, count=600, seed=2)
        parts = [
            StreamingDataset(f"{root}/{name}", cache_dir=cache, options=options, shuffle=True, seed=3)
            for name in ("many", "few")
        ]
        mixed = CombinedStreamingDataset(parts, weights=[3, 1], seed=4)
        loader = StreamingDataLoader(mixed, batch_size=40, collate_fn=collate)
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(2):
            for pictures, labels in loader:
                loss = cross_entropy(model(pictures), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"epoch {epoch}: {len(mixed)} samples, 900 and 300, and a loss of {loss:.3f}")
        mixed.close()


if __name__ == "__main__":
    main()
