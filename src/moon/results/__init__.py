"""Finished runs read back: numbers, comparisons, tables and figures."""
