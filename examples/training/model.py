"""A model that is trained in a second."""

from typing import Any

import torch
from bucket import SIDE
from torch import nn


def make_model() -> nn.Module:
    """Return the same model each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(SIDE * SIDE, 64), nn.ReLU(), nn.Linear(64, 10))


def collate(items: list[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the pictures and the labels of a batch."""
    pixels = torch.frombuffer(bytearray(b"".join(item["pixels"] for item in items)), dtype=torch.uint8)
    pictures = pixels.view(len(items), -1).float() / 128 - 1
    return pictures, torch.tensor([item["label"] for item in items])
