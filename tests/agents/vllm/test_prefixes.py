"""Who has computed the beginning of a context."""

from gymnast.agents.vllm.prefixes import BLOCK_TOKENS, Prefixes, block_keys

IDS = list(range(5 * BLOCK_TOKENS + 3))


def test_the_longest_beginning_counts_in_whole_blocks() -> None:
    prefixes = Prefixes("ab")
    keys = block_keys(IDS, "weights")
    prefixes.keep(keys[:2], "a")
    prefixes.keep(keys, "b")
    assert len(keys) == 5
    assert prefixes.find(keys) == {"a": 2, "b": 5}
    assert prefixes.find(block_keys([*IDS[:130], 7, *IDS[131:]], "weights")) == {"a": 2, "b": 2}
    assert prefixes.find(block_keys([7, *IDS[1:]], "weights")) == {"a": 0, "b": 0}


def test_what_other_weights_computed_does_not_count() -> None:
    prefixes = Prefixes("a")
    prefixes.keep(block_keys(IDS, "run:1"), "a")
    assert prefixes.find(block_keys(IDS, "run:2")) == {"a": 0}


def test_what_a_lost_server_computed_is_forgotten() -> None:
    prefixes = Prefixes("ab")
    keys = block_keys(IDS, "weights")
    prefixes.keep(keys, "a")
    prefixes.keep(keys[:1], "b")
    prefixes.forget("a")
    assert prefixes.find(keys) == {"a": 0, "b": 1}


def test_the_oldest_blocks_are_forgotten_first() -> None:
    prefixes = Prefixes("a", most=5)
    first, second = block_keys(IDS, "first"), block_keys(IDS, "second")
    prefixes.keep(first, "a")
    prefixes.keep(second[:2], "a")
    assert prefixes.find(second) == {"a": 2}
    assert prefixes.find(first) == {"a": 0}  # its first block is gone
