"""Networks and detectors as plain data, for programs without PyTorch."""
