"""The public names of this package and where they are defined."""

from moon.deploy.calibration import Guarantee as Guarantee
from moon.deploy.drift import DriftMonitor as DriftMonitor
from moon.deploy.loading import load as load
from moon.deploy.own import pack as pack
from moon.deploy.packing import pack_run as pack_run
from moon.deploy.threshold import (
    Threshold as Threshold,
    find_threshold as find_threshold,
    images_needed as images_needed,
    p_values as p_values,
)
