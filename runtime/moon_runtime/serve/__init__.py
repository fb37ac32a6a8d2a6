"""Answers over HTTP, with a page to try a network: python -m moon_runtime.serve digits.moon.

Needs `pip install 'moon-runtime[serve]'`. Requests of all connections are computed together in batches; an image gets
the same answer, bit for bit, as alone.
"""
