"""Score a finished run: every detector on every unknown set."""

from moon.score.checkpoint import score_checkpoint
from moon.score.files import KNOWN, Scores, read_scores, read_summary
from moon.score.score import score_run

__all__ = ["KNOWN", "Scores", "read_scores", "read_summary", "score_checkpoint", "score_run"]
