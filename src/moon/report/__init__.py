"""Write one self-contained HTML page about runs."""
