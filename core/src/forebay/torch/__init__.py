"""Streaming datasets for PyTorch; needs ``pip install "forebay[torch]"``."""

from __future__ import annotations

try:
    import torch  # noqa: F401
except ImportError as exc:
    from forebay.exceptions import MissingDependencyError

    raise MissingDependencyError('forebay.torch needs PyTorch: pip install "forebay[torch]"') from exc

from forebay.torch._combined import CombinedStreamingDataset, ParallelStreamingDataset
from forebay.torch._dataset import StreamingDataset
from forebay.torch._loader import StreamingDataLoader

__all__ = [
    "CombinedStreamingDataset",
    "ParallelStreamingDataset",
    "StreamingDataLoader",
    "StreamingDataset",
]
