"""Which weights exist. Four questions, four small things: how much a layer (allocation), where in it (pattern), when
(schedule), which (a topology's scores)."""

from moon.sparse.allocation import erk, uniform
from moon.sparse.dense import Dense
from moon.sparse.flops import LayerCost, MoonExtra, NetCost, PaperRow, layer_costs, moon_extra, net_cost, paper_flops
from moon.sparse.gmp import Gmp
from moon.sparse.granet import GraNet
from moon.sparse.mest import Mest
from moon.sparse.pattern import NOfM
from moon.sparse.rigl import RigL
from moon.sparse.schedule import DropSchedule
from moon.sparse.set import SET
from moon.sparse.snfs import Snfs
from moon.sparse.snip import Snip
from moon.sparse.static import Static
from moon.sparse.sup_tickets import SupTickets, TicketSchedule
from moon.sparse.topology import SparseTopology, Topology, sparse_weights

ALLOCATIONS = {"erk": erk, "uniform": uniform}
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
    "ALLOCATIONS", "SET", "TOPOLOGIES", "Dense", "DropSchedule", "Gmp", "GraNet", "LayerCost", "Mest", "MoonExtra",
    "NOfM", "NetCost", "PaperRow", "RigL", "Snfs", "Snip", "SparseTopology", "Static", "SupTickets", "TicketSchedule",
    "Topology", "erk", "layer_costs", "moon_extra", "net_cost", "paper_flops", "sparse_weights", "uniform",
]  # fmt: skip
