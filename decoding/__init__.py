"""Decoding: the program grammar, its resolver and state machine, and the decoders that run them."""

import os

# Models, data sets and trainers would otherwise report to the hub. Set the variable to 0 to allow it.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
