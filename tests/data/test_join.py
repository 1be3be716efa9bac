"""Keyed ids: which ids are the same, which are refused, and the order of the common ones."""

import hashlib
import hmac

import numpy as np
import pytest
import scipy.sparse as sp

from sottovoce.data.join import joined, tokens

KEY = b"0123456789abcdef"


def test_a_token_is_an_hmac_of_the_id():
    wanted = hmac.new(KEY, "sottovoce/id/zoë".encode(), hashlib.sha256).digest()
    assert tokens(["zoë"], KEY).tobytes() == wanted


def test_numbers_and_spellings_that_unicode_calls_equal_are_the_same_id():
    one, other = ["7", "zoe\u0308", "\u212b"], [np.int32(7), "zo\u00eb", "\u00c5"]
    np.testing.assert_array_equal(tokens(one, KEY), tokens(other, KEY))


def test_other_ids_and_other_keys_give_other_tokens():
    ids = ["ann", "Ann", "ann ", "7", "07", "安"]
    made = [*tokens(ids, KEY), *tokens(ids, KEY[::-1])]
    assert len({one.tobytes() for one in made}) == 2 * len(ids)


@pytest.mark.parametrize(
    ("ids", "key", "kind", "message"),
    [
        (["a", "b", "a"], KEY, ValueError, "1 ids name more than one row .'a'."),
        (["\u00eb", "e\u0308"], KEY, ValueError, "more than one row"),
        ([], KEY, ValueError, "there are no ids"),
        ([1.0], KEY, TypeError, "of type float"),
        ([True], KEY, TypeError, "of type bool"),
        ([b"a"], KEY, TypeError, "of type bytes"),
        ([None], KEY, TypeError, "of type NoneType"),
        (["a"], b"short", ValueError, "at least 16 bytes"),
        (["a"], "0123456789abcdef", ValueError, "at least 16 bytes"),
    ],
)
def test_ids_and_keys_that_do_not_do_are_refused(ids, key, kind, message):
    with pytest.raises(kind, match=message):
        tokens(ids, key)


def test_common_rows_have_one_order_whatever_the_order_of_the_lists():
    rng = np.random.default_rng(0)
    first, second = rng.permutation(50), rng.permutation(np.arange(20, 90))
    common = tokens(rng.permutation(np.arange(20, 50)), KEY)
    found = [joined(ids, tokens(ids, KEY), rng.permutation(common)) for ids in (first, second)]
    np.testing.assert_array_equal(first[found[0].rows], second[found[1].rows])
    assert sorted(first[found[0].rows]) == list(range(20, 50))
    assert found[0].order == found[1].order
    assert found[0].ids.tolist() == [str(one) for one in first[found[0].rows]]
    assert joined(first, tokens(first, KEY), common[1:]).order != found[0].order


def test_blocks_follow_the_joined_rows():
    ids, block = ["a", "b", "c"], np.arange(6.0).reshape(3, 2)
    found = joined(ids, tokens(ids, KEY), tokens(["c", "a"], KEY), words=("said",))
    columns = found.columns(block)
    np.testing.assert_array_equal(columns.blocks[0], block[found.rows])
    np.testing.assert_array_equal(found.columns(sp.coo_array(block)).blocks[0].toarray(), block[found.rows])
    assert columns.facts.words == ("said",)
    assert sorted(columns.ids) == ["a", "c"]
