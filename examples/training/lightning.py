"""Train with Lightning: the position goes into its checkpoints, and comes back from them.

Run it: ``python examples/training/lightning.py`` (needs torch, pytorch-lightning, moto and the backend forebay-s3; no
account). A run ends with an error in the middle of an epoch, and another one goes on from the last checkpoint.
"""

import logging
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
import torch
from bucket import bucket, write_digits
from model import collate, make_model
from pytorch_lightning.callbacks import ModelCheckpoint
from torch.nn.functional import cross_entropy

from forebay.torch import StreamingDataLoader, StreamingDataset

BATCH = 32


class Digits(lightning.LightningDataModule):
    """The dataset; Lightning saves and loads its state with the checkpoint."""

    def __init__(self, url: str, cache: Path, options: dict[str, object]) -> None:
        super().__init__()
        self.loader = StreamingDataLoader(
            StreamingDataset(url, cache_dir=cache, options=options, shuffle=True, seed=1),
            batch_size=BATCH,
            collate_fn=collate,
        )

    def train_dataloader(self) -> StreamingDataLoader:
        return self.loader

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.loader.load_state_dict(state_dict)


class Classifier(lightning.LightningModule):
    """A model that counts the samples it was trained on, and fails at a step."""

    def __init__(self, fail_at: int | None = None) -> None:
        super().__init__()
        self.model = make_model()
        self.fail_at = fail_at
        self.seen = 0

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        if self.global_step == self.fail_at:
            raise RuntimeError("the power went out")
        pictures, labels = batch
        self.seen += len(labels)
        return cross_entropy(self.model(pictures), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(folder: Path) -> lightning.Trainer:
    """Return a quiet trainer that saves a checkpoint every ten steps."""
    return lightning.Trainer(
        accelerator="cpu",
        max_epochs=2,
        callbacks=[ModelCheckpoint(folder, filename="last", every_n_train_steps=10, enable_version_counter=False)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def main() -> None:
    """Train until something goes wrong, and go on to the end of the second epoch."""
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    with tempfile.TemporaryDirectory() as place, bucket() as (root, options):
        url, folder = f"{root}/digits", Path(place)
        write_digits(url, options, count=1000, seed=0)
        model = Classifier(fail_at=13)
        try:
            trainer(folder).fit(model, Digits(url, folder / "cache", options))
        except RuntimeError as error:
            print(f"{error} after {model.seen} samples; the last checkpoint is of step 10")

        model = Classifier()
        data = Digits(url, folder / "cache", options)
        trainer(folder).fit(model, data, ckpt_path=str(folder / "last.ckpt"), weights_only=True)
        print(f"went on with {model.seen} samples, to the end of epoch {data.loader.dataset.epoch - 1}")
        assert 10 * BATCH + model.seen == 2 * 1000


if __name__ == "__main__":
    main()
