"""Votes over sampled programs: the document most of them made, by its likeliest program, at the cost of all."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_decoders import Watch, decoder_of

from decoding.decoder import Edit, EditRequest
from decoding.engine import EditStats
from decoding.grammar import Copy, Program
from decoding.voting import VotingDecoder, vote

SUMS = ("forwards", "decoded", "copied", "forced", "fed", "heads", "drafted", "accepted", "broken_utf8", "wall_s")


def edit(text, confidence, number=0, stop="end", **stats):
    """An edit that can be told from others by its ids."""
    return Edit(text, Program([Copy(1, 1)]), [number], EditStats(stop=stop, **stats), confidence)


def cut(confidence, number=0):
    return edit(None, confidence, number, stop="max_tokens")


def test_the_document_of_most_programs_wins_by_its_likeliest_program():
    edits = [edit("a", 0.9, 0), edit("b", 0.1, 1), edit("b", 0.3, 2), edit("b", 0.2, 3)]
    won = vote(edits)
    assert (won.text, won.ids, won.confidence) == ("b", [2], 3 / 4)


def test_a_tie_goes_to_the_document_with_the_likeliest_program():
    edits = [edit("a", 0.2, 0), edit("b", 0.1, 1), edit("a", 0.3, 2), edit("b", 0.4, 3)]
    assert (vote(edits).text, vote(edits).ids) == ("b", [3])
    assert (vote(edits[::-1]).text, vote(edits).confidence) == ("b", 1 / 2)


def test_programs_cut_by_a_limit_have_no_vote_but_count_as_samples():
    edits = [cut(0.9, 0), cut(0.8, 1), cut(0.7, 2), edit("a", 0.01, 3)]
    won = vote(edits)
    assert (won.text, won.ids, won.confidence, won.complete) == ("a", [3], 1 / 4, True)


def test_without_a_complete_program_the_likeliest_is_returned_at_no_confidence():
    won = vote([cut(0.1, 0), cut(0.5, 1), cut(0.2, 2)])
    assert (won.text, won.ids, won.confidence, won.complete) == (None, [1], 0.0, False)
    assert won.stats.stop == "max_tokens"


def test_an_empty_document_is_a_document():
    won = vote([edit("", 0.1, 0), edit("", 0.2, 1), cut(0.9, 2)])
    assert (won.text, won.confidence) == ("", 2 / 3)


def test_the_costs_of_all_programs_are_added_up_and_the_rest_is_the_winners():
    edits = [
        edit("a", 0.5, 0, prompt_tokens=7, prefill_s=2.0, **{name: index for index, name in enumerate(SUMS)}),
        edit("b", 0.1, 1, prompt_tokens=7, prefill_s=3.0, **{name: 10 * index for index, name in enumerate(SUMS)}),
    ]
    won = vote(edits)
    assert [getattr(won.stats, name) for name in SUMS] == [11 * index for index in range(len(SUMS))]
    assert (won.stats.prompt_tokens, won.stats.prefill_s, won.stats.stop) == (7, 2.0, "end")
    assert [one.stats.forwards for one in edits] == [0, 0]  # the ballots are left as they were
    assert (edits[0].confidence, edits[1].stats.decoded) == (0.5, 10)


ballots = st.lists(st.tuples(st.sampled_from(["a", "b", "c", "", None]), st.floats(0, 1)), min_size=1, max_size=9)


@settings(max_examples=300, deadline=None)
@given(ballots)
def test_any_vote_is_the_one_counted_by_hand(ballots):
    edits = [
        cut(confidence, number) if text is None else edit(text, confidence, number, forwards=number)
        for number, (text, confidence) in enumerate(ballots)
    ]
    won = vote(edits)
    counted = Counter(text for text, _ in ballots if text is not None)
    if not counted:
        assert (won.text, won.confidence) == (None, 0.0)
        assert ballots[won.ids[0]][1] == max(confidence for _, confidence in ballots)
        return
    most = max(counted.values())
    leaders = [text for text, count in counted.items() if count == most]
    assert won.text in leaders
    assert won.confidence == most / len(ballots)
    chances = {text: max(chance for other, chance in ballots if other == text) for text in leaders}
    assert chances[won.text] == max(chances.values())
    assert ballots[won.ids[0]] == (won.text, chances[won.text])
    assert won.stats.forwards == sum(one.stats.forwards for one in edits)


# The decoder


def test_a_vote_needs_samples_that_differ():
    with pytest.raises(ValueError, match="samples=1"):
        VotingDecoder(decoder_of(temperature=1.0), samples=1)
    with pytest.raises(ValueError, match="temperature=0"):
        VotingDecoder(decoder_of(temperature=0.0))


REQUESTS = [EditRequest(f"Edit {number}.", document) for number, document in enumerate(("one", "a\nb", "", "x\ny\nz"))]


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_each_request_gets_the_vote_of_its_own_samples(batch_size):
    options = {"temperature": 1.0, "weights": 1, "max_tokens": 40, "seed": 2}
    decoder = VotingDecoder(decoder_of(batch_size=batch_size, **options), samples=5)
    alone = decoder_of(**options)
    assert decoder.encoder is alone.encoder
    votes = dict(decoder.stream(enumerate(REQUESTS)))
    assert sorted(votes) == [0, 1, 2, 3]
    for number, won in votes.items():
        samples = [alone.decode_one(REQUESTS[number], 5 * number + sample) for sample in range(5)]
        expected = vote(samples)
        assert (won.text, won.program, won.ids) == (expected.text, expected.program, expected.ids)
        assert won.confidence == expected.confidence
        assert won.stats.decoded == sum(sample.stats.decoded for sample in samples)
    assert any(won.text is not None for won in votes.values())


def test_the_vote_of_a_request_does_not_depend_on_what_else_is_asked():
    decoder = VotingDecoder(decoder_of(batch_size=4, temperature=1.0, weights=1, max_tokens=40), samples=4)
    votes = dict(decoder.stream(enumerate(REQUESTS)))
    for number in reversed(range(4)):
        ((same, won),) = decoder.stream([(number, REQUESTS[number])])
        assert (same, won.text, won.ids) == (number, votes[number].text, votes[number].ids)


def test_a_prompt_is_computed_once_where_its_samples_share_a_batch():
    inner = decoder_of(batch_size=6, temperature=1.0, weights=0, max_tokens=30, drafts=False)
    watch = Watch(inner)
    votes = dict(VotingDecoder(inner, samples=6).stream([(0, EditRequest("Edit.", "one\ntwo\nthree"))]))
    prompt = votes[0].stats.prompt_tokens
    assert sum(feed.start == 0 for feeds in watch.calls for feed in feeds) == 1
    assert sum(length == prompt for _, _, length in watch.copies) >= 4
    assert votes[0].stats.fed == watch.fed <= prompt + 6 * 30


def test_a_vote_is_yielded_once_all_its_samples_are_in_and_never_twice():
    class Shuffled:
        """A decoder whose samples come in an order of their own."""

        chooser, encoder = SimpleNamespace(temperature=1.0), None

        def stream(self, requests):
            numbered = [number for number, _ in requests]
            for number in numbered[::2] + numbered[1::2]:
                yield number, edit(f"{number // 3}", 0.5, number)

    votes = list(VotingDecoder(Shuffled(), samples=3).stream([(4, None), (9, None), (2, None)]))
    assert sorted(number for number, _ in votes) == [2, 4, 9]
    assert all((won.text, won.confidence) == (str(number), 1.0) for number, won in votes)


def test_text_that_no_token_spells_has_no_vote():
    decoder = VotingDecoder(decoder_of(temperature=1.0, max_tokens=20, batch_size=2), samples=2)
    votes = dict(decoder.stream([(0, EditRequest("Edit.", "a\ud800")), (1, REQUESTS[0])]))
    assert (votes[0].text, votes[0].stats.stop, votes[0].confidence) == (None, "lone_surrogate", 0.0)
    assert votes[1].ids
