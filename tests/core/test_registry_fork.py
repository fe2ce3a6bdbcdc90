"""J6: the registry loads once, from any thread, and a fork in the middle of it harms nobody."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

PLUGIN = """
    import builtins
    import forebay
    from forebay.types import BackendSpec

    builtins.count = getattr(builtins, "count", 0) + 1
    if hasattr(builtins, "entered"):
        builtins.entered.set()
        assert builtins.go_on.wait(90)

    class Slow(forebay.Downloader):
        def download_fileobj(self, key, fileobj):
            fileobj.write(b"slow")

    @forebay.hookimpl
    def forebay_register_backends():
        return [BackendSpec(name="slow", schemes=("slow",), load=lambda: Slow)]
"""

FORK = """
    import builtins, os, threading
    import forebay

    builtins.entered, builtins.go_on = threading.Event(), threading.Event()
    loader = threading.Thread(target=lambda: forebay.open_downloader("slow://x"))
    loader.start()
    assert builtins.entered.wait(90)
    threading.Timer(0.3, builtins.go_on.set).start()  # the fork below begins while the plugin is being imported
    pid = os.fork()
    if pid == 0:
        forebay.register_downloader("child", type(forebay.open_downloader("slow://x")))
        os._exit(0 if forebay.open_downloader("child://x").download_bytes("k") == b"slow" else 1)
    loader.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert forebay.open_downloader("slow://x").download_bytes("k") == b"slow"
    print("done")
"""

THREADS = """
    import builtins, threading
    import forebay

    barrier = threading.Barrier(32)
    got = []

    def use():
        barrier.wait(90)
        got.append(forebay.open_downloader("slow://x").download_bytes("k"))

    threads = [threading.Thread(target=use) for _ in range(32)]
    for thread in threads: thread.start()
    for thread in threads: thread.join(30)
    assert got == [b"slow"] * 32, got
    assert builtins.count == 1
    print("done")
"""

PLUGIN_FORKS = """
    import os
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    ("plugin", "script"),
    [(PLUGIN, FORK), (PLUGIN, THREADS), (dedent(PLUGIN_FORKS) + dedent(PLUGIN), THREADS)],
    ids=["fork-while-loading", "many-threads", "plugin-that-forks"],
)
def test_j6_loading_meets_threads_and_fork(tmp_path: Path, plugin: str, script: str) -> None:
    (tmp_path / "slow_plugin.py").write_text(dedent(plugin))
    info = tmp_path / "slow_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[forebay]\nslow = slow_plugin\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", dedent(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
