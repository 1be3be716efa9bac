"""The lists of what is answered, and the one function that every message passes."""

import pytest
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey as Head
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.byte_streamer import TxTask
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey as Stream

from sottovoce.deploy import incoming
from sottovoce.deploy.incoming import COMMANDS, LISTS, accepts

JOB = "12345678-1234-1234-1234-123456789abc"
OTHER = JOB[:-1] + "d"


def headers(origin, target, channel="admin", topic="admin", way="req", **more):
    return {
        Head.ORIGIN: origin, Head.DESTINATION: target, Head.MSG_TYPE: way, Head.CHANNEL: channel, Head.TOPIC: topic,
        **more,
    }  # fmt: skip


def test_the_lists_are_short():
    """Whoever adds a line looks at what FLARE does with it, and asks the relay's tests again."""
    for (to, by), requests in sorted(LISTS.items()):
        print(f"{to} answers {by}: {', '.join(sorted('/'.join(one) for one in requests))}")
    print(f"commands of the server to a site: {', '.join(sorted(COMMANDS))}")
    assert sum(map(len, LISTS.values())) <= 55
    assert len(COMMANDS) == 9
    everywhere = {one for requests in LISTS.values() for one in requests}
    assert not {channel for channel, _ in everywhere} & {"_net_manager", "credential_manager", "*"}
    assert not {topic for _, topic in everywhere} & {"*", "bulk"}


def streamed(origin, target, channel, topic, **more):
    return headers(origin, target, "sm__STREAM", "sm__DATA", **{Stream.CHANNEL: channel, Stream.TOPIC: topic}, **more)


@pytest.mark.parametrize(
    ("me", "by", "said"),
    [
        ("north", "server", headers("server", "north")),
        ("north", "server", headers("server", "north", "task", "heart_beat", "reply")),
        ("north", f"north.{JOB}", headers(f"north.{JOB}", "north", "admin", "train.notify_job_status")),
        (f"north.{JOB}", "server", streamed(f"south.{JOB}", f"north.{JOB}", "collab", "call")),
        (f"north.{JOB}", "server", streamed(f"south.{JOB}", f"north.{JOB}", "return_only", "collab:call")),
        (f"north.{JOB}", "north", headers("north", f"north.{JOB}", "client_command", "abort")),
        ("server", f"south.{JOB}", streamed(f"south.{JOB}", f"north.{JOB}", "collab", "call")),
        ("north", "server", streamed(f"south.{JOB}", f"north.{JOB}", "collab", "call")),  # its job has lost its line
        ("north", f"north.{JOB}", streamed(f"north.{JOB}", f"server.{JOB}", "server_command", "get_task")),
        (f"north.{JOB}", "north", streamed(f"south.{JOB}", f"north.{JOB}", "collab", "call")),
        (f"north.{JOB}", "server", headers("server", f"north.{JOB}", "sm__STREAM", "sm__ERROR")),
        ("north", "server", headers("server", "north", **{Head.ROUTE: [["server", 1.0], ["x", 2.0]]})),
        (
            "server",
            "south",
            headers("south", "server", way="return", **{Head.ORIGINAL_HEADERS: (headers("server", "south"))}),
        ),
        (
            f"north.{JOB}",
            "server",
            headers(
                "server",
                f"north.{JOB}",
                way="return",
                **{Head.ORIGINAL_HEADERS: (streamed(f"north.{JOB}", f"south.{JOB}", "collab", "call"))},
            ),
        ),
        ("server", f"north.{JOB}", streamed(f"north.{JOB}", f"south.{JOB}", None, None, **{Stream.ERROR_MSG: "x"})),
    ],
)
def test_what_a_run_needs_is_taken(me, by, said):
    assert accepts(me, by, said)


@pytest.mark.parametrize(
    ("me", "by", "said"),
    [
        ("north", "server", headers("south", "north")),  # another site
        ("north", "server", headers(f"_admin_{JOB}", "north")),  # the administrator
        ("north", "server", headers(f"north.{JOB}", "north", "admin", "train.notify_job_status")),  # not its own job
        ("north", "server", headers("north", "north")),  # itself
        ("north", "server", headers("server", "north", "_net_manager", "stop_cell")),
        ("north", "server", headers("server", "north", "cellnet.channel", "bulk")),
        ("north", "server", headers("server", "north", Stream="x", **{Head.CONN_URL: "tcp://a:1"})),
        ("north", "server", headers("server", "north", **{Head.SECURE: True})),
        ("north", "server", headers("server", "south")),  # a site hands on what concerns its job
        ("north", "server", streamed(f"south.{JOB}", f"east.{JOB}", "collab", "call")),
        ("north", "server", streamed("south", "north", None, None, **{Stream.ERROR_MSG: "x"})),
        (f"north.{JOB}", "server", streamed(f"south.{JOB}", f"north.{JOB}", "x", "y", **{Stream.DATA_TYPE: 6})),
        (f"north.{JOB}", "server", headers(f"south.{JOB}", f"north.{JOB}", "collab", "call")),  # not as a stream
        ("north", "server", streamed("server", "north", "admin", "admin")),  # as a stream
        (f"north.{JOB}", "south", streamed(f"south.{JOB}", f"north.{JOB}", "server_command", "get_task")),
        ("north", "server", headers("server", "north", way="other")),
        ("north", "server", headers("south", "north", way="return")),  # of somebody who did not bring it
        ("north", "server", headers("south", "north", "collab", "call", "reply")),  # nobody was asked
        ("north", "server", {}),
        (f"north.{JOB}", "server", streamed(f"south.{OTHER}", f"north.{JOB}", "collab", "call")),  # another run
        (f"north.{JOB}", "server", streamed("south", f"north.{JOB}", "collab", "call")),  # not of a job
        # neither question nor answer: FLARE takes it for an answer
        (f"north.{JOB}", "server", streamed(f"south.{JOB}", f"north.{JOB}", "collab", "call") | {Head.MSG_TYPE: "x"}),
        # FLARE keeps a count for each first name of a way, and for each channel and topic that came back
        ("north", "server", headers("server", "north", **{Head.ROUTE: [["made up", 1.0]]})),
        ("north", "server", headers("server", "north", **{Head.ROUTE: [["server", "1"]]})),
        ("north", "server", headers("server", "north", **{Head.ROUTE: "server"})),
        ("north", "server", headers("server", "north", **{Head.ROUTE: [["server", 1.0]] * 100})),
        ("server", "south", headers("south", "server", way="return")),
        (
            "server",
            "south",
            headers(
                "south", "server", way="return", **{Head.ORIGINAL_HEADERS: (headers("server", "south", "made", "up"))}
            ),
        ),
        (
            "server",
            "south",
            headers("south", "server", way="return", **{Head.ORIGINAL_HEADERS: (headers("north", "south"))}),
        ),
        (f"north.{JOB}", "server", streamed(f"south.{JOB}", f"north.{JOB}", "aux_communication", "__end_run__")),
        (f"north.{JOB}", "server", streamed(f"south.{JOB}", f"north.{JOB}", "sm__STREAM", "sm__ACK")),
        (f"north.{JOB}", "server", streamed(f"south.{JOB}", f"north.{JOB}", "return_only", "client_command:abort")),
        (f"north.{JOB}", f"south.{JOB}", streamed(f"east.{JOB}", f"north.{JOB}", "collab", "call")),  # not the relay
        ("server", "south", headers("south", "north")),  # the server hands on the calls of jobs alone
        ("server", "south", streamed(f"north.{JOB}", f"east.{JOB}", "collab", "call")),  # in another's name
        (f"server.{JOB}", "server", streamed(f"south.{JOB}", f"server.{JOB}", "server_command", "abort")),
        ("server", "south", streamed("south", "server", "hci_channel", "command")),
        ("north", "north.job", headers("north.job", "north", "admin", "train.notify_job_status")),
    ],
)
def test_all_else_is_dropped(me, by, said):
    assert not accepts(me, by, said)


def test_only_the_one_that_a_stream_goes_to_says_how_far_it_came(monkeypatch):
    """Another site of the same job guesses the number of a stream, and says that it has ended."""
    heard = []
    monkeypatch.setattr(TxTask, "handle_ack", lambda self, message: heard.append(message))
    incoming._acknowledge_by_target()
    stream = TxTask.__new__(TxTask)
    stream.target = f"east.{JOB}"
    for origin in (f"south.{JOB}", f"east.{JOB}"):
        stream.handle_ack(Message({Head.ORIGIN: origin, Stream.ERROR_MSG: "x"}, b""))
    assert [message.get_header(Head.ORIGIN) for message in heard] == [f"east.{JOB}"]
