"""`TwoDriverDownloader`: a backend with an obstore and an fsspec driver, of which one serves each process."""

from forebay_drivers.facade._choice import Choice
from forebay_drivers.facade._downloader import TwoDriverDownloader
from forebay_drivers.facade._keys import check_key, split_root

__all__ = ["Choice", "TwoDriverDownloader", "check_key", "split_root"]
