"""Frozen results: a run's losses, and an old checkpoint's translations (see freeze.py)."""

import json

import pytest

from tests.golden.freeze import TRAJECTORY, TRANSLATIONS, losses, translations


def test_a_run_follows_its_frozen_losses(digits, tmp_path):
    frozen = json.loads(TRAJECTORY.read_text())
    assert len(frozen) >= 10
    assert losses(digits, tmp_path) == pytest.approx(frozen, rel=2e-3)


def test_an_old_checkpoint_translates_as_it_did(digits):
    assert translations(digits) == json.loads(TRANSLATIONS.read_text())
