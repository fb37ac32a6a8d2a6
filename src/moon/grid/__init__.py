"""Grids: many runs, each done exactly once, on one machine or on a cluster."""

from moon.grid.grid import DataFacts, Grid, Job, State, Workers
from moon.grid.processes import Processes

__all__ = ["DataFacts", "Grid", "Job", "Processes", "State", "Workers"]
