"""Errors on their way to a reader: ours say where they happened, a stranger's stay as they are and get a note."""

from __future__ import annotations

from forebay._transfer._types import Source
from forebay._url import redact
from forebay.exceptions import ForebayError, StorageError

__all__ = ["explain"]


def explain(error: Exception, source: Source) -> None:
    """Add URL, key and backend to ``error``; once, however often it passes."""
    if not isinstance(error, ForebayError):
        note = f"while reading {source.where}"
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        return
    # A worker's error is rebuilt from its class and text alone, so the text has to hold it all.
    text = redact(error.message)
    if not source.key:
        text = text.replace("key '' at ", "")  # a driver names the key it was given; the URL alone is the whole place
    if source.key not in text or source.backend not in text or source.url not in text:
        text = f"{text}: {source.where}" if text else source.where
    error.args = (text,)
    if isinstance(error, StorageError):
        error.url = error.url or source.url
        error.key = error.key or source.key
        error.backend = error.backend or source.backend
