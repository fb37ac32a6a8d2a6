"""The paper's evaluation: its tables and figures, the runs they need, and our numbers next to the paper's."""
