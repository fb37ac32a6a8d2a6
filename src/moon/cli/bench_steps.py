"""`moon bench train`: the table of training steps."""

from __future__ import annotations

from typing import Any


def show(title: str, records: list[dict[str, Any]], limits: dict[str, float] | None, steps_per_epoch: int) -> None:
    """Print the times of training steps, their lower bounds, and why some steps are not captured."""
    from moon.cli.output import new_table, show_table
    from moon.timing import LOOPS

    texts = ("objective", "topology", "loop")
    shown = new_table(title, *texts, "ms", "ratio", "vs base", "100 epochs", texts=texts)
    for record in records:
        for loop in (loop for loop in LOOPS if loop in record):
            times = record[loop]
            shown.add_row(
                record["objective"], record["topology"], loop, f"{times['milliseconds']:.2f}",
                f"{times['ratio']:.3f} ±{(times['ratio_high'] - times['ratio_low']) / 2:.3f}",
                f"{times['by_base']:.3f}", f"{times['seconds_of_100_epochs']:.0f} s",
            )  # fmt: skip
    if limits:
        shown.add_section()
        for name, key in (("arithmetic", "matrix_milliseconds"), ("with memory", "milliseconds")):
            epochs = f"{limits[key] * steps_per_epoch / 10:.0f} s"
            shown.add_row("limit", name, "", f"{limits[key]:.2f}", "", "", epochs)
    show_table(shown)
    for record in records:
        if "plain_because" in record:
            print(f"{record['objective']} {record['topology']} is not captured: {record['plain_because']}")


def explain(rounds: str, images: int, limits: dict[str, float] | None) -> None:
    """Print what the columns mean."""
    from rich.console import Console

    from moon.timing import BASE

    Console().print(
        f"ratio: relative to the first line in the same loop, median over {rounds}, ± half the interquartile range; "
        f"vs base: relative to {BASE} on the same topology; 100 epochs of {images:,} images.",
        highlight=False,
    )
    if limits:
        Console().print(
            f"limit: {limits['flops'] / 1e9:.3g} GFLOP at {limits['matrix_flops_per_second'] / 1e12:.3g} TFLOP/s, "
            f"{limits['traffic_bytes'] / 1e9:.2f} GB at {limits['bytes_per_second'] / 1e9:.0f} GB/s, measured here",
            highlight=False,
        )
