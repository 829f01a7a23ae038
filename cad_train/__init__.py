"""The training library: settings, examples, trainer, and run folder of the span selector."""

import logging
import warnings

# Where it is installed, every run would open with its advice to install yet another package.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)

# Nor is it news that there is no GPU, or that a model's special tokens become those of its tokenizer.
for _logger, _opening in (
    ("DeepSpeed", "Setting accelerator to CPU"),
    ("transformers.trainer_utils", "The tokenizer has new PAD/BOS/EOS tokens"),
):
    logging.getLogger(_logger).addFilter(lambda record, opening=_opening: not str(record.msg).startswith(opening))

# PEFT 0.21 asks under the old name, which transformers 6 will not have.
warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
