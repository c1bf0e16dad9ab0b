"""Where things are timed: the device, the peers, a scratch folder."""

from dataclasses import dataclass
from pathlib import Path

from vitreous import parallel
from vitreous.bench.peers import Peers


@dataclass(frozen=True, kw_only=True)
class Place:
    """What every job is given."""

    world: parallel.World
    peers: Peers
    scratch: Path
    """A folder for this case alone, which is removed afterwards."""
    workers: int
    """Processes that load images."""
