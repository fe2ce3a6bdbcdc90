"""A backend in twenty lines, registered in this process: no packaging, no plugin.

Run it: ``python examples/inprocess_downloader.py``. It packs a small dataset, serves it from a zip archive through a
`Downloader` of its own, and streams it back through the cache.
"""

import tempfile
import zipfile
from pathlib import Path

import forebay


class ZipDownloader(forebay.Downloader):
    """Objects that are members of an archive: ``zipped:///path/to/archive.zip``.

    It takes the whole root for the archive's path, which is right for `open_dataset`; `fetch` gives a shorter root.
    """

    def download_fileobj(self, key: str, fileobj: forebay.downloader.SupportsWrite) -> None:
        with zipfile.ZipFile(self.root.removeprefix("zipped://")) as archive:
            try:
                member = archive.open(key)
            except KeyError as error:
                raise FileNotFoundError(f"no member {key!r} in the archive") from error
            with member:
                while piece := member.read(1 << 20):
                    fileobj.write(piece)


def main() -> None:
    forebay.register_downloader("zipped", ZipDownloader)
    with tempfile.TemporaryDirectory() as folder:
        forebay.pack(({"n": n, "square": n * n} for n in range(1000)), f"{folder}/data", chunk_bytes="4KiB")
        with zipfile.ZipFile(f"{folder}/data.zip", "w") as archive:
            for path in Path(folder, "data").iterdir():
                archive.write(path, path.name)
        with forebay.open_dataset(f"zipped://{folder}/data.zip", cache_dir=f"{folder}/cache") as dataset:
            right = sum(item["square"] == item["n"] ** 2 for item in dataset)
            stats = dataset.stats()
    print(f"{right} items, {stats.chunks_fetched} chunks, {stats.bytes_fetched} bytes from the archive")


if __name__ == "__main__":
    main()
