"""`moon` in other people's training loops and libraries: one module each, each behind an extra of the same name.

This package imports nothing. Import the module you need, such as `moon.integrations.lightning`.
"""
