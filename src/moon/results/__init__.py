"""Read finished runs and turn them into numbers, comparisons, tables and figures."""
