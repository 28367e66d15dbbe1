"""Damaged frames of coded observations: each is read or refused, and no memory is lost.

`benchmarks/codec_fuzz.py` does the same a million times.
"""

import importlib
import zlib
from pathlib import Path

import pytest

from clusterenv.wire.compression import compress

COUNT = 30_000


@pytest.fixture
def codec_fuzz(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("codec_fuzz")


def test_damaged_frames_are_read_or_refused_and_memory_stays_flat(codec_fuzz):
    outcome = codec_fuzz.fuzz(COUNT, seed=5)
    assert outcome.failures == []
    assert outcome.is_flat, outcome.memory_mb
    assert sum(outcome.reasons.values()) == COUNT
    # Neither is everything refused, nor is anything of what is damaged left out.
    assert outcome.reasons["read"] > COUNT / 100
    for name, _, _ in codec_fuzz.damages():
        assert outcome.by_damage[name, False] > 0


def test_a_reader_that_believes_every_size_is_found(codec_fuzz, monkeypatch):
    # More than malloc ever serves from memory that was freed before: that would not grow.
    bomb = zlib.compress(bytes(64 << 20))

    def decompress(data, kind, most_bytes):
        return zlib.decompress(bomb)

    monkeypatch.setattr("clusterenv.wire.observation_codec.decompress", decompress)
    assert not codec_fuzz.fuzz(3, seed=5).is_flat


def test_an_error_that_is_not_clean_is_found(codec_fuzz, monkeypatch):
    def decompress(data, kind, most_bytes):
        raise ValueError("unclean")

    monkeypatch.setattr("clusterenv.wire.observation_codec.decompress", decompress)
    outcome = codec_fuzz.fuzz(100, seed=5)
    assert outcome.reasons["NOT CLEAN: ValueError"] > 50
    assert "ValueError: unclean" in outcome.failures[0]


def test_what_is_sent_is_read_if_nothing_happens_to_it(codec_fuzz):
    head, sent = codec_fuzz.Head(), codec_fuzz.corpus(seed=5)
    assert {head.read(one) for one in sent} == {"read"}
    assert {one.coding.axis for one in sent} == {0, 2, 4}
    assert all(one.frame == compress(one.plain, one.coding.compression) for one in sent)
