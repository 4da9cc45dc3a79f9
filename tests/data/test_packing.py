import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adloco_p2p.data.packing import TokenRows, cut, pack, smallest_dtype, terminated
from adloco_p2p.data.tokenizer import TokenIds
from adloco_p2p.numerics.batch import IGNORED_LABEL

END = 256
UINT16 = np.dtype(np.uint16)

documents = st.lists(st.lists(st.integers(0, 255), max_size=40), max_size=12)
lengths = st.integers(1, 9)


def slow_pack(texts: list[list[int]], length: int) -> tuple[list[list[int]], list[list[int]]]:
    """Ids and labels, one token at a time."""
    ids: list[list[int]] = []
    labels: list[list[int]] = []
    for text in texts:
        for token in [*text, END] if text else []:
            if not ids or len(ids[-1]) == length:
                ids.append([])
                labels.append([])
            ids[-1].append(token)
            labels[-1].append(token)
    while ids and len(ids[-1]) < length:
        ids[-1].append(END)
        labels[-1].append(IGNORED_LABEL)
    return ids, labels


def packed(texts: list[list[int]], length: int) -> TokenRows:
    arrays = [np.array(text, dtype=np.uint8) for text in texts]
    return pack(arrays, sequence_length=length, end_of_document=END, dtype=UINT16)


@given(documents, lengths)
def test_pack_against_one_token_at_a_time(texts: list[list[int]], length: int) -> None:
    rows = packed(texts, length)
    ids, labels = slow_pack(texts, length)
    batch = rows.gather(np.arange(rows.num_rows))
    assert batch.input_ids.tolist() == ids
    assert batch.labels.tolist() == labels


@given(documents, lengths)
def test_no_token_is_lost(texts: list[list[int]], length: int) -> None:
    rows = packed(texts, length)
    kept = rows.ids.reshape(-1)[: rows.num_tokens].tolist()
    assert kept == [token for text in texts if text for token in [*text, END]]
    assert rows.num_rows * length - rows.num_tokens < length


@given(documents, lengths)
def test_cutting_document_by_document_gives_the_same_rows(texts: list[list[int]], length: int) -> None:
    rows: list[list[int]] = []
    rest: TokenIds = np.empty(0, dtype=UINT16)
    for line in terminated((np.array(text, dtype=np.uint8) for text in texts), end_of_document=END, dtype=UINT16):
        full, rest = cut(np.concatenate([rest, line]), sequence_length=length)
        rows += full.tolist()
    whole = packed(texts, length)
    assert rows == whole.ids[: whole.num_tokens // length].tolist()
    assert len(rest) == whole.num_tokens % length


@given(st.data())
def test_gather_takes_rows_in_any_order(data: st.DataObject) -> None:
    rows = packed([list(range(50))], 7)
    wanted = data.draw(st.lists(st.integers(0, rows.num_rows - 1)))
    all_rows = rows.gather(np.arange(rows.num_rows))
    some = rows.gather(np.array(wanted, dtype=np.int64))
    assert some.input_ids.tolist() == [all_rows.input_ids[row].tolist() for row in wanted]
    assert some.labels.tolist() == [all_rows.labels[row].tolist() for row in wanted]


def test_storage_is_two_bytes_where_the_vocabulary_fits() -> None:
    assert smallest_dtype(257) == smallest_dtype(1 << 16) == np.uint16
    assert smallest_dtype((1 << 16) + 1) == np.int32
