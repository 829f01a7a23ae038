"""Micro-batches, accumulation, padding and kernels change nothing: the same examples a step, losses and gradients."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_models import encoder_of, save_model, tiny_model
from training_runs import metrics, recipe_line, run, weights

from cad_train.batches import Collator, EpochOrder, with_blanks
from cad_train.examples import UNSUPERVISED
from cad_train.loss import IGNORED, region_losses
from decoding.encoder import REGIONS


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), "qwen2")


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory, model_folder: Path):
    """Run five steps of eight examples over 11, so that an epoch ends in the middle, with some settings."""
    folder = tmp_path_factory.mktemp("runs")

    def train(*settings: str) -> Path:
        out = folder / str(len(list(folder.iterdir())))
        fixed = ["batch_size=8", "max_steps=5", "save=no"]
        run(recipe_line(model_folder, folder / "oracles", out, *fixed, *settings), folder / "log")
        return out

    (folder / "oracles").mkdir()
    return train
