"""Sparse training: which weights are zero, and how that changes during training.

An allocation decides how many weights each layer keeps, a pattern where in a layer they may be, a schedule when they
change, and a topology which ones are dropped and grown.
"""

from moon.sparse.allocation import erk, uniform
from moon.sparse.dense import Dense
from moon.sparse.flops import LayerCost, NetCost, layer_costs, net_cost
from moon.sparse.gmp import Gmp
from moon.sparse.granet import GraNet
from moon.sparse.mest import Mest
from moon.sparse.pattern import NOfM, Pattern
from moon.sparse.rigl import RigL
from moon.sparse.schedule import DropSchedule
from moon.sparse.set import SET
from moon.sparse.snfs import Snfs
from moon.sparse.snip import Snip
from moon.sparse.sparse_topology import SparseTopology
from moon.sparse.static import Static
from moon.sparse.sup_tickets import SupTickets, TicketSchedule
from moon.sparse.topology import Topology
from moon.sparse.weights import sparse_weights

ALLOCATIONS = {"erk": erk, "uniform": uniform}
PATTERNS = {"2:4": NOfM(2, 4)}
TOPOLOGIES: dict[str, type[Topology]] = {
    "dense": Dense,
    "static": Static,
    "set": SET,
    "rigl": RigL,
    "snfs": Snfs,
    "mest": Mest,
    "gmp": Gmp,
    "granet": GraNet,
    "snip": Snip,
    "sup-tickets": SupTickets,
}

__all__ = [
    "ALLOCATIONS", "PATTERNS", "SET", "TOPOLOGIES", "Dense", "DropSchedule", "Gmp", "GraNet", "LayerCost", "Mest",
    "NOfM", "NetCost", "Pattern", "RigL", "Snfs", "Snip", "SparseTopology", "Static", "SupTickets", "TicketSchedule",
    "Topology", "erk", "layer_costs", "net_cost", "sparse_weights", "uniform",
]  # fmt: skip
