"""Scores of a finished run: every detector on every unknown set."""
