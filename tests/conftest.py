"""What every test gets: shared helpers on the path, an environment of its own, and a look at what it leaves behind."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from servers.azurite import Azurite
from servers.fakegcs import FakeGcs
from servers.ftp import Ftp
from servers.gcsxml import GcsXml
from servers.moto import Moto
from servers.nginx import Nginx
from servers.process import LASTING
from servers.session import session_server
from servers.sftp import Sftp
from servers.weed import Weed

from forebay.testing import FaultServer

#: The engine's one thread a process lives until the interpreter ends; `forebay._prefetch` has tests for that end. So
#: does fsspec's own, which its blocking interface starts.
LASTING_THREADS = frozenset({"forebay-io", "fsspecIO"})
#: Helpers of multiprocessing that live as long as the process that started them.
LASTING_PROCESSES = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
#: Directories that multiprocessing and torch remove at exit, not before.
LASTING_TEMPORARIES = ("pymp-", "torch_")
#: Seconds that threads and processes have to end by themselves after a test.
GRACE = 5.0
#: What the one fork server of this process imports, whichever test is the first to use it: what its children would
#: import late, one second of processor time each.
PRELOAD = [
    "filelock",
    "forebay._cache._foresight",
    "forebay._codecs.zstd",
    "forebay._formats.litdata",
    "forebay._open",
    "forebay.testing",
    "forebay.torch",
    "forebay_http._downloader",
    "forebay_http._obstore_driver",
    "numpy",
    "torch",
    "torch.utils.data",
]
multiprocessing.set_forkserver_preload(PRELOAD)
# A shell has what it runs in the background ignore Ctrl-C, and all that this starts inherits it, down to the programs
# that the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
#: Settings of ours and of the clouds' SDKs: a test sees none that it did not make.
FOREIGN = ("FOREBAY_", "AWS_", "AZURE_", "GOOGLE_", "CLOUDSDK_", "STORAGE_EMULATOR_HOST", "GCSFS_")
#: No SDK asks a cloud's metadata address, nor dials an emulator's port with gRPC (gcsfs waits 40 s for that).
NO_METADATA = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AZURE_TOKEN_CREDENTIALS": "dev",
    "NO_GCE_CHECK": "true",
    "GCE_METADATA_HOST": "127.0.0.1:9",
    "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
}
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=12, help="how many processes the crash campaign kills")
    parser.addoption("--seed", type=int, default=1, help="the first seed of the crash campaign")


# One server of each for all tests of this process, started when a test first asks for it.
azurite = session_server(Azurite)
fakegcs = session_server(FakeGcs)
ftp = session_server(Ftp)
gcsxml = session_server(GcsXml)
moto = session_server(Moto)
nginx = session_server(Nginx)
sftp = session_server(Sftp)
weed = session_server(Weed)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    """A server that misbehaves as told, empty."""
    with FaultServer() as running:
        yield running


@pytest.fixture(autouse=True)
def isolated_environment(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees, or writes, the user's settings, cache, proxies or home. Returns the home that it sees."""
    home = tmp_path_factory.mktemp("home")
    for name in os.environ:
        if (name.startswith(FOREIGN) and name != "FOREBAY_REQUIRE") or name.lower() in PROXIES:
            monkeypatch.delenv(name)
    for name, value in NO_METADATA.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(home))
    for name, folder in (("CONFIG", ".config"), ("CACHE", ".cache"), ("DATA", ".local/share"), ("STATE", ".state")):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(home / folder))
    return home


@pytest.fixture(autouse=True)
def no_leaks(isolated_environment: Path) -> Iterator[None]:
    """Fail the test that leaves a thread, a child process or a temporary file behind.

    Set up right after the environment, so torn down after every other fixture of the test.
    """
    threads_before = set(threading.enumerate())
    children_before = _children()
    # A short path: sockets of multiprocessing lie in it, and their paths may have about a hundred characters.
    temporary = tempfile.mkdtemp(prefix="fbt-")
    previous, old_default = os.environ.get("TMPDIR"), tempfile.tempdir
    os.environ["TMPDIR"] = tempfile.tempdir = temporary
    try:
        yield
        leaks = [
            *_threads_left(threads_before),
            *_processes_left(children_before),
            *(f"temporary {name}" for name in os.listdir(temporary) if not name.startswith(LASTING_TEMPORARIES)),
        ]
    finally:
        tempfile.tempdir = old_default
        os.environ.pop("TMPDIR")
        if previous is not None:
            os.environ["TMPDIR"] = previous
        if not any(name.startswith(LASTING_TEMPORARIES) for name in os.listdir(temporary)):
            shutil.rmtree(temporary)
    if leaks:
        pytest.fail("left behind: " + ", ".join(leaks), pytrace=False)


def _threads_left(before: set[threading.Thread]) -> list[str]:
    deadline = monotonic() + GRACE
    lasting = tuple(LASTING_THREADS)
    if any(thread.name in LASTING_THREADS for thread in threading.enumerate()):
        lasting += ("asyncio_",)  # SDKs use the default executor of the lasting thread's loop, which lasts with it
    while True:
        left = [one for one in threading.enumerate() if one not in before and not one.name.startswith(lasting)]
        if not left or monotonic() > deadline:
            return [f"thread {thread.name}" for thread in left]
        for thread in left:
            if thread.ident is None:  # it is just being started, as what closes forgotten datasets may be at any time
                threading.Event().wait(0.001)
            else:
                thread.join(max(deadline - monotonic(), 0))


def _children() -> set[int]:
    """The pids of our child processes. The kernel's own list is some hundred times cheaper than a walk over all."""
    try:
        lists = [task.joinpath("children").read_text() for task in Path("/proc/self/task").iterdir()]
    except OSError:  # no Linux, or a thread that ended just now
        return {child.pid for child in psutil.Process().children()}
    return {int(pid) for text in lists for pid in text.split()}


def _processes_left(before: set[int]) -> list[str]:
    new = [psutil.Process(pid) for pid in _children() - before - LASTING if psutil.pid_exists(pid)]
    left: list[str] = []
    suspects = [process for process in new if not any(name in _command(process) for name in LASTING_PROCESSES)]
    for process in psutil.wait_procs(suspects, timeout=GRACE)[1]:
        left.append(f"process {process.pid} ({_command(process)[:80]})")
    return left


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return "ended"
