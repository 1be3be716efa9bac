"""What is said is on disk before anybody hears it, and what a kill leaves of it is told apart."""

import numpy as np
import pytest

from sottovoce.deploy.outbox import Outbox
from sottovoce.runtime.frames import Message, MessageId


def said(round, value=1.0):
    return Message(MessageId("r", round, 0, "mix 1"), (np.float32(value), np.arange(4)), "release")


def test_a_part_of_a_message_is_no_message(tmp_path):
    """A kill inside a write leaves a part: nobody has heard it, and it is said anew."""
    box = Outbox(tmp_path)
    box.say(1, said(0))
    box.say(1, said(1, value=2.0))
    torn = tmp_path / "said" / "1" / "000000001-000000"
    torn.write_bytes(torn.read_bytes()[:-3])
    again = Outbox(tmp_path)
    assert again.after(1, (0, -1), 0)[1] == said(0).to_bytes()
    assert again.after(1, (0, 0), 0) is None
    again.say(1, said(1, value=3.0))
    assert again.after(1, (0, 0), 0)[1] == said(1, value=3.0).to_bytes()


def test_draws_are_there_before_the_message_that_follows_from_them(tmp_path, monkeypatch):
    """A kill right after the draws were written, before the message: the next process draws nothing."""
    box = Outbox(tmp_path)
    box.note("0 step: release 2", [np.arange(3.0)])

    def killed(*given, **how):
        raise KeyboardInterrupt

    monkeypatch.setattr("sottovoce.deploy.outbox.append", killed)
    with pytest.raises(KeyboardInterrupt):
        box.say(1, said(0))
    again = Outbox(tmp_path)
    assert again.after(1, (0, -1), 0) is None
    np.testing.assert_array_equal(again.recall("0 step: release 2")[0], np.arange(3.0))


def test_what_was_said_is_said_again_and_files_are_the_owners_alone(tmp_path):
    box = Outbox(tmp_path)
    message = said(0)
    for hearer in (1, 4):
        box.say(hearer, message)
    again = Outbox(tmp_path)
    again.say(1, said(0, value=9.0))  # computed anew, on another machine for example
    assert again.after(1, (0, -1), 0)[1] == again.after(4, (0, -1), 0)[1] == message.to_bytes()
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.glob("said/*/*"))


def test_messages_and_draws_that_are_behind_everybody_are_removed(tmp_path):
    box = Outbox(tmp_path)
    for round in range(6):
        box.note(f"{round} step: release 2", [np.arange(3.0)])
        box.say(1, said(round))
    box.forget(lambda hearer: 4, drawn_before=3)
    assert [path.name[:9] for path in sorted((tmp_path / "said" / "1").iterdir())] == ["000000004", "000000005"]
    assert len(list((tmp_path / "drawn").iterdir())) == 3
    Outbox(tmp_path).require(4)
    with pytest.raises(ValueError, match="before round 4 is no longer kept"):
        Outbox(tmp_path).require(3)
    box.forget(lambda hearer: 0, drawn_before=4)
    with pytest.raises(ValueError, match="before round 4 is no longer kept"):  # and it is not taken back
        Outbox(tmp_path).require(3)
