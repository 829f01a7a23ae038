"""The training library: settings, examples, trainer, and run folder of the span selector."""

import logging
import os

# Constructing a trainer would otherwise report to the hub. Set the variable to 0 to allow it.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
# Where it is installed, every run would open with its advice to install yet another package.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
