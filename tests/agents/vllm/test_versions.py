"""Which weights sampled an answer: what is refused, and what is learned of it."""

import pytest

from gymnast.agents.vllm.versions import KnownWeights, SentTooEarly
from gymnast.agents.vllm.wire import Sampled
from gymnast.errors import ServerLost
from gymnast.types import VersionSpan


def sampled(*versions: tuple[int, int, str]) -> Sampled:
    return Sampled([7, 8, 9, 10], [-1.0] * 4, "length", list(versions))


def test_tokens_have_the_versions_that_sampled_them() -> None:
    known = KnownWeights("run", 6, named=True)
    spans = known.spans(sampled((0, 3, "run:5"), (3, 4, "run:6")), sent="run:5")
    assert spans == [VersionSpan(0, 3, 5), VersionSpan(3, 4, 6)]


@pytest.mark.parametrize(
    "versions",
    [
        [(0, 4, "run:4")],  # older than the request was sent under
        [(0, 4, "other:5")],
        [(0, 4, "default")],
        [(0, 2, "run:5"), (2, 4, "other:1")],
        [(0, 3, "run:5")],  # of the last token nothing is said
        [(0, 1, "run:5"), (2, 4, "run:5")],
        [],
    ],
)
def test_other_weights_are_refused(versions: list[tuple[int, int, str]]) -> None:
    known = KnownWeights("run", 5, named=True)
    with pytest.raises(ServerLost, match="instead of run:5: it was started again, or another run"):
        known.spans(sampled(*versions), sent="run:5")


def test_before_weights_were_handed_over_a_server_has_its_own() -> None:
    assert KnownWeights("run").spans(sampled((0, 4, "default")), "run:0") == [VersionSpan(0, 4, 0)]


def test_a_copy_sends_again_what_it_sent_under_older_weights() -> None:
    copy = KnownWeights("run", 5, named=True).copied()
    with pytest.raises(SentTooEarly) as raised:
        copy.spans(sampled((0, 4, "run:6")), sent="run:5")
    assert raised.value.name == "run:6"
    spans = copy.spans(sampled((0, 2, "run:6"), (2, 4, "run:7")), sent="run:6")
    assert spans == [VersionSpan(0, 2, 6), VersionSpan(2, 4, 7)]
