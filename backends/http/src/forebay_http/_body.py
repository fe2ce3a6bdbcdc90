"""A response's body as a stream of decoded pieces."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping

import aiohttp

from forebay.exceptions import DecompressionError, IncompleteBodyError, UnsupportedOperationError
from forebay_drivers.errors import Subject, failure
from forebay_http._aiohttp_errors import SDK_ERRORS, translate
from forebay_http._decode import BadEncodingError, Decoder, UnknownEncodingError, encodings_of, make_decoder

__all__ = ["Body"]


class Body:
    """The body of one response. ``size`` is that of the decoded body, where the headers tell it."""

    def __init__(self, response: aiohttp.ClientResponse, subject: Subject) -> None:
        self._response = response
        self._subject = subject
        self.headers: Mapping[str, str] = response.headers
        self.encodings = encodings_of(response.headers.get("Content-Encoding"))
        length = response.headers.get("Content-Length", "")
        self.size = int(length) if length.isdigit() and not self.encodings else None

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the body; aiohttp itself compares the bytes on the wire with Content-Length."""
        decoder = self._decoder()
        while True:
            raw = await self._next()
            if decoder is None:
                if not raw:
                    return
                yield raw
                continue
            try:
                for piece in decoder.feed(raw):
                    yield piece
                if not raw:
                    decoder.finish()
                    return
            except BadEncodingError as exc:
                problem = exc
                break
        if problem.cut:
            raise failure(IncompleteBodyError, str(problem), self._subject)
        subject = self._subject
        raise DecompressionError(f"{problem}: key {subject.key!r} at {subject.url} (http backend)", url=subject.url)

    def _decoder(self) -> Decoder | None:
        try:
            return make_decoder(self.encodings)
        except UnknownEncodingError as exc:
            raise failure(UnsupportedOperationError, str(exc), self._subject) from None

    async def _next(self) -> bytes:
        try:
            return await self._response.content.readany()
        except SDK_ERRORS as exc:
            problem = translate(exc, self._subject, in_body=True)
        raise problem
