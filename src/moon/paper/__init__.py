"""The paper's evaluation: its tables and figures from run folders, its numbers beside ours."""
