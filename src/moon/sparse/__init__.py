"""Which weights exist. Three questions, three small things: how much a layer (allocation), when (schedule), which
(a topology's grow score)."""

from moon.sparse.allocation import erk, uniform
from moon.sparse.rigl import RigL
from moon.sparse.schedule import DropSchedule
from moon.sparse.set import SET
from moon.sparse.static import Static
from moon.sparse.topology import Dense, SparseTopology, Topology, sparse_weights

ALLOCATIONS = {"erk": erk, "uniform": uniform}
TOPOLOGIES: dict[str, type[Topology]] = {"dense": Dense, "static": Static, "set": SET, "rigl": RigL}

__all__ = [
    "ALLOCATIONS", "SET", "TOPOLOGIES", "Dense", "DropSchedule", "RigL", "SparseTopology", "Static", "Topology",
    "erk", "sparse_weights", "uniform",
]  # fmt: skip
