"""Risk E7, E8, B8, B16, C1, D1, K1: readers killed at random moments, and everything that must hold after each round.

The slow run kills a few. The long campaign: ``python -m pytest -m campaign --kills 300 -rP``, which prints
what each dozen of kills saw; ``--seed`` begins with another one.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from servers.crash import Campaign
from servers.disk import mounted
from servers.watcher import Watcher

from forebay.testing import FaultServer

pytestmark = pytest.mark.slow

#: Kills of one test, each test with a directory and a seed of its own; so the campaign runs in parallel too.
KILLS_EACH = 6
#: Room for so many of the largest chunk, exactly, in turn.
BUDGETS = (2, 1, 3, 12, 5)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "campaign_seed" in metafunc.fixturenames:
        total, first = metafunc.config.getoption("--kills"), metafunc.config.getoption("--seed")
        metafunc.parametrize("campaign_seed", range(first, first + -(-total // KILLS_EACH)))


@pytest.mark.campaign
def test_readers_killed_at_random_moments_break_no_promise(tmp_path: Path, campaign_seed: int) -> None:
    """No wrong byte, lease, temporary or file of the dead; never over budget; the next run starts within a second."""
    campaign = Campaign(
        tmp_path, campaign_seed, budget_chunks=BUDGETS[(campaign_seed - 1) % len(BUDGETS)], mixed=campaign_seed % 2 == 0
    )
    with FaultServer() as server, Watcher(campaign.directory) as watcher:
        campaign.run(server, KILLS_EACH)
        seen = watcher.seen()
    told = (
        f"seed {campaign_seed}: {campaign.kills} kills ({campaign.midway} among items) in {campaign.rounds} rounds,"
        f" the slowest {campaign.slowest_round:.1f} s; next runs had an item after at most {max(campaign.starts):.2f}"
        f" s; at most {seen.peak} of {campaign.most} bytes in {seen.looks} looks, {seen.rate:.0f} a second;"
        f" met {', '.join(sorted(campaign.met))}"
    )
    print(told)
    assert 0 < seen.peak <= campaign.most, told


@pytest.mark.campaign
def test_readers_killed_while_the_disk_is_full_break_no_promise(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """Issue 4, item 7: a reader may say so and end; once there is room everything goes on, nothing is left."""
    seed = pytestconfig.getoption("--seed")
    with mounted(tmp_path / "disk", "size=6m") as disk, FaultServer() as server:
        campaign = Campaign(disk, seed, budget_chunks=1000, ballast=disk / "ballast")
        campaign.run(server, max(pytestconfig.getoption("--kills") // 10, 3))
    print(f"{campaign.kills} kills in {campaign.rounds} rounds; met {', '.join(sorted(campaign.met))}")
