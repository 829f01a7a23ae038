"""The training library: settings, examples, trainer, and run folder of the span selector."""

import logging

# Where it is installed, every run would open with its advice to install yet another package.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
