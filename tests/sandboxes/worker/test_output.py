"""Output is kept with bounded memory, and cut where no character is."""

from hypothesis import given
from hypothesis import strategies as st

from gymnast.sandboxes.guest.capture import CHUNK_BYTES, Output
from gymnast.sandboxes.worker.results import join


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(1, 50))
def test_head_and_tail_are_those_of_the_whole(pieces: list[bytes], limit: int) -> None:
    output, whole = Output(limit), b"".join(pieces)
    for piece in pieces:
        output.add(piece)
    head, tail, missing = output.parts()
    assert len(head) + len(tail) + missing == len(whole) == output.total
    assert whole.startswith(head) and whole.endswith(tail)
    assert len(head) + len(tail) == min(limit, len(whole))


def test_memory_stays_bounded() -> None:
    output = Output(1000)
    for _ in range(100):
        output.add(b"x" * CHUNK_BYTES)
        assert len(output._tail) <= 1000 + 2 * CHUNK_BYTES


@given(st.text(max_size=200), st.integers(1, 60))
def test_a_cut_makes_no_new_replacement_characters(text: str, limit: int) -> None:
    output = Output(limit)
    output.add(text.encode())
    joined = join(*output.parts())
    assert joined.count("\ufffd") <= text.count("\ufffd")
    if len(text.encode()) <= limit:
        assert joined == text
    else:
        kept = len(joined.encode()) - len(joined[joined.index("[...") :].split("\n")[0].encode())
        assert "bytes left out ...]\n" in joined
        assert kept <= limit + 2  # two line ends around the line


@given(st.binary(max_size=60), st.integers(1, 30))
def test_bytes_that_are_no_text_are_cut_as_well(data: bytes, limit: int) -> None:
    output = Output(limit)
    output.add(data)
    head, tail, missing = output.parts()
    joined = join(head, tail, missing)
    if missing:
        said = int(joined[joined.rindex("[... ") :].split()[1])
        assert missing <= said <= missing + 6
    else:
        assert joined == data.decode("utf-8", "replace")
