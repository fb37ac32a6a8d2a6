"""`moon bench train --kernels`: what the GPU does in a captured step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from moon.data import Benchmark

_MOST = 30  # kernels in the table; the JSON file has all
_WIDTH = 60  # characters of a name


def profile(
    pairs: list[tuple[str, str]], benchmark: Benchmark, device: torch.device, settings: dict[str, Any]
) -> list[dict[str, Any]]:
    """Profile captured steps of each objective and topology, and print their kernels; returns a record per pair."""
    from moon import timing
    from moon.suggest import first_line

    records = []
    for objective, topology in pairs:
        try:
            found = timing.profile_steps(benchmark, objective, topology, device=device, **settings)
        except (RuntimeError, ValueError) as error:  # the times of the steps are measured already, and kept
            reason = first_line(error)
            print(f"the kernels of {objective}, {topology} could not be profiled: {reason}")
            records.append({"objective": objective, "topology": topology, "failed": reason})
            continue
        show(f"a step of {settings['net'] or benchmark.net}: {objective}, {topology}", found)
        records.append({"objective": objective, "topology": topology} | found)
    return records


def show(title: str, profile: dict[str, Any]) -> None:
    """Print the groups of kernels, and the kernels that take the longest."""
    from moon.cli.output import new_table, show_table

    groups = new_table(f"Kernels of {title}", "for", "count", "us", "share", texts=("for",))
    for row in profile["groups"]:
        groups.add_row(row["group"], *_numbers(row))
    show_table(groups)
    kernels = new_table("", "for", "kernel", "count", "us", "share", texts=("for", "kernel"))
    for row in profile["kernels"][:_MOST]:
        kernels.add_row(row["group"], _short(row["name"]), *_numbers(row))
    show_table(kernels)
    rest = profile["kernels"][_MOST:]
    if rest:
        print(f"{len(rest)} other kernels: {sum(row['microseconds'] for row in rest):.0f} us")
    between = profile["idle_between"]
    print(
        f"per step: sum of all kernels {profile['sum']:.0f} us, at least one running {profile['busy']:.0f} us, "
        f"idle {profile['idle_within']:.0f} us"
        + ("" if between is None else f" between its kernels and {between:.0f} us before the next step")
    )


def _numbers(row: dict[str, Any]) -> tuple[str, str, str]:
    return f"{row['count']:.4g}", f"{row['microseconds']:.1f}", f"{100 * row['share']:.1f}%"


def _short(name: str) -> str:
    """The name without return type, at most `_WIDTH` characters of it."""
    name = name.removeprefix("void ")
    return name if len(name) <= _WIDTH else f"{name[: _WIDTH - 3]}..."
