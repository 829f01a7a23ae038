"""The training library: settings, examples, trainer, and run folder of the span selector."""

import os

# Constructing a trainer would otherwise report to the hub. Set the variable to 0 to allow it.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
