"""One run in its folder: its images, its training, and the files of the folder."""

from moon.run.folder import is_done, is_trained, load, load_result
from moon.run.images import BenchmarkImages
from moon.run.log import read_log
from moon.run.train import train_run

__all__ = ["BenchmarkImages", "is_done", "is_trained", "load", "load_result", "read_log", "train_run"]
