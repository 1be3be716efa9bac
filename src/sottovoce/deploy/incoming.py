"""Decide which messages of FLARE's network are answered: those on a short list, and no others.

FLARE answers every participant of its network: it lets any site, and the administrator, read files of other sites. So
each process of ours that speaks to the network (`sottovoce.deploy.engine` starts it) has one function that every
message passes, `accepts`. What is not on `LISTS` is dropped and logged. Example: the process of the site "north"
answers requests on the channel "admin" from the server alone; the same request from "south" is dropped.

Who sent a message is its header, which the server checks. A server that lies can pretend to be another site, so nothing
on a list may harm: the commands behind "admin" are cut to `COMMANDS`, and the numbers of jobs have one form.
"""

import logging
import re
from collections.abc import Mapping
from functools import cache
from io import BytesIO
from typing import Any
from zipfile import BadZipFile, ZipFile

from nvflare.apis.fl_constant import AdminCommandNames, ReservedTopic, ServerCommandNames
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, MessageHeaderKey, MessageType
from nvflare.fuel.f3.streaming.byte_streamer import TxTask
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_ACK_TOPIC,
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    STREAM_ERROR_TOPIC,
    StreamHeaderKey,
)
from nvflare.fuel.hci.server.constants import ConnProps
from nvflare.fuel.hci.server.reg import ServerCommandRegister
from nvflare.private.admin_defs import Message as Order
from nvflare.private.admin_defs import error_reply
from nvflare.private.defs import RequestHeader, TrainingTopic
from nvflare.private.fed.client.admin import FedAdminAgent, RequestProcessor
from nvflare.private.fed.server.cmd_utils import CommandUtil

_JOB = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_APP = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NAMED = RequestHeader.JOB_ID
_ADMINISTRATOR = re.compile(r"_admin_[0-9a-f-]{36}")
_WAY = (MessageHeaderKey.MSG_TYPE, MessageHeaderKey.CHANNEL, MessageHeaderKey.TOPIC)
PATIENCE = 30.0  # seconds for the server to answer an administrator
_SITE_ANSWERS = 5.0  # seconds for a site to answer the server meanwhile; by FLARE's numbers it is the other way round
_LARGEST_APP, _MOST_FILES = (
    1 << 22,
    100,
)  # bytes and files of a job, unpacked: it is a run file and two lists of classes
_LONGEST_WAY = 8  # cells that hand a message on
_MOST_NOTED = 1000  # kinds of dropped messages that get a line in the log: a stranger cannot fill the disk
_log = logging.getLogger(__name__)

_AUX, _SERVER, _TASK = CellChannel.AUX_COMMUNICATION, CellChannel.SERVER_COMMAND, CellChannel.SERVER_MAIN
_BYE = (CellChannel.CELLNET, CellChannelTopic.Bye)
_BROKEN = (STREAM_CHANNEL, STREAM_ERROR_TOPIC)
_STREAM = {(STREAM_CHANNEL, STREAM_ACK_TOPIC), _BROKEN}
_CALL = ("collab", "call")
_STREAMED = {_AUX, _SERVER, _CALL[0], CellChannel.HCI}  # channels whose messages come in streams, and only so
_LOGIN = {(_TASK, CellChannelTopic.Challenge), (_TASK, CellChannelTopic.Register)}
# (who, whom): the channels and topics of requests. "job" is the process of a running job, and of one and the same job.
LISTS: dict[tuple[str, str], set[tuple[str, str]]] = {
    ("site", "server"): {(CellChannel.CLIENT_MAIN, CellChannel.CLIENT_MAIN), _BYE},
    ("site", "its job"): {(CellChannel.CLIENT_MAIN, TrainingTopic.NOTIFY_JOB_STATUS), _BYE},
    ("site's job", "its parent"): {(CellChannel.CLIENT_COMMAND, AdminCommandNames.ABORT), _BYE, _BROKEN},
    ("site's job", "server"): {_BYE, _BROKEN},
    ("site's job", "server's job"): {*_STREAM, _CALL, (_AUX, ReservedTopic.END_RUN)},
    ("site's job", "another site's job"): {*_STREAM, _CALL},
    ("server", "site"): {
        *_LOGIN, _BYE, *((_TASK, topic) for topic in (
            CellChannelTopic.HEART_BEAT, CellChannelTopic.REPORT_JOB_FAILURE, CellChannelTopic.Quit))
    },
    ("server", "site's job"): {_BYE},
    ("server", "its job"): {
        *_STREAM, _BYE, *((CellChannel.SERVER_PARENT_LISTENER, topic) for topic in (
            ServerCommandNames.GET_CLIENTS, ServerCommandNames.HEARTBEAT, ServerCommandNames.UPDATE_RUN_STATUS))
    },
    ("server", "administrator"): {
        *_LOGIN, *_STREAM, _BYE, (CellChannel.HCI, "command"), (_AUX, "ObjectStreamer.Request"),
        (_AUX, "ObjectStreamer.Abort"),
    },
    ("server's job", "its parent"): {
        *_STREAM, _BYE, *((_SERVER, topic) for topic in (
            ServerCommandNames.APP_COMMAND, ServerCommandNames.HANDLE_DEAD_JOB, AdminCommandNames.ABORT))
    },
    ("server's job", "site's job"): {
        *_STREAM, _CALL, *((_AUX, topic) for topic in (
            ReservedTopic.SYNC_RUNNER, ReservedTopic.TASK_CHECK, ReservedTopic.JOB_HEART_BEAT)),
        (_SERVER, ServerCommandNames.GET_TASK), (_SERVER, ServerCommandNames.SUBMIT_UPDATE),
    },
    ("administrator", "server"): {*_STREAM, _BYE},
}  # fmt: skip
# What the server may ask of a site; the others of FLARE's (shell, delete, logs, system, restart) are not there.
COMMANDS = {
    "train.deploy", "train.start_job", "train.abort", "train.check_status", "train.notify_job_status",
    "scheduler.check_resource", "scheduler.cancel_resource", "sys.report_version", "train.get_scopes",
}  # fmt: skip
# What an administrator may ask of the server.
ASKED = {
    "_commands", "_cert_login", "_logout", "_check_session", "check_status", "submit_job", "list_jobs", "get_job_meta",
    "abort_job", "app_command",
}  # fmt: skip


def kind(cell: str) -> str:
    """Say what a cell is, by its name.

    >>> [kind(name) for name in ("north", "server", "north.12345678-1234-1234-1234-123456789abc", "north.job")]
    ['site', 'server', "site's job", 'stranger']
    """
    root, _, rest = cell.partition(".")
    who = "server" if root == "server" else "administrator" if _ADMINISTRATOR.fullmatch(root) else "site"
    if not rest:
        return who if re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", root) else "stranger"
    return f"{who}'s job" if who != "administrator" and _JOB.fullmatch(rest) else "stranger"


def sender(me: str, origin: str) -> str:
    """Say who a sender is to a cell.

    >>> job = "12345678-1234-1234-1234-123456789abc"
    >>> [sender(f"north.{job}", name) for name in (f"south.{job}", f"south.{job[:-1]}d", "north", "server")]
    ["another site's job", 'stranger', 'its parent', 'server']
    """
    (root, _, job), (other, _, theirs) = me.partition("."), origin.partition(".")
    who = kind(origin)
    if root == other:
        return "stranger" if who == "stranger" or bool(job) == bool(theirs) else "its job" if theirs else "its parent"
    if job and theirs and job != theirs:
        return "stranger"
    return f"another {who}" if kind(me).startswith("site") and who.startswith("site") else who


def listed(me: str, origin: str, channel: str, topic: str) -> bool:
    """Say whether a cell takes requests of a sender on a channel and topic."""
    return (channel, topic) in LISTS.get((kind(me), sender(me, origin)), ())


def accepts(me: str, neighbour: str, headers: Mapping[str, Any]) -> bool:
    """Say whether a cell takes, or hands on, a message that a neighbour brings. Every message passes here.

    An answer is taken from whom the question could be put to.
    """
    head = headers.get
    origin, target, way = (str(head(key)) for key in (MessageHeaderKey.ORIGIN, MessageHeaderKey.DESTINATION, _WAY[0]))
    if head(MessageHeaderKey.CONN_URL) or head(MessageHeaderKey.SECURE):
        return False  # FLARE would connect to an address of the sender's choice, or begin to exchange keys
    if not _brings(me, neighbour, origin) or not _concerns(me, origin, target):
        return False
    if not _came(origin, head(MessageHeaderKey.ROUTE)):
        return False
    if way == MessageType.RETURN:  # "it could not be handed on": a question that the other side put
        question = head(MessageHeaderKey.ORIGINAL_HEADERS)
        return origin == neighbour and isinstance(question, Mapping) and _listed_question(question, by=target)
    if way == MessageType.REPLY:
        return listed(origin, target, *(str(head(key)) for key in _WAY[1:]))
    return _listed_question(headers, by=origin)


def _listed_question(headers: Mapping[str, Any], by: str) -> bool:
    """Say whether a message is a question on the lists, which a sender put."""
    origin, target, way, channel, topic = (
        str(headers.get(key)) for key in (MessageHeaderKey.ORIGIN, MessageHeaderKey.DESTINATION, *_WAY)
    )
    if way != MessageType.REQ or origin != by:
        return False  # FLARE takes what is neither question nor answer for an answer
    if (channel, topic) == (STREAM_CHANNEL, STREAM_DATA_TOPIC):
        channel, topic = (str(headers.get(key)) for key in (StreamHeaderKey.CHANNEL, StreamHeaderKey.TOPIC))
        if headers.get(StreamHeaderKey.ERROR_MSG):  # by this FLARE tells that it ends a stream, whatever else is said
            return listed(target, origin, *_BROKEN)
        if channel == CellChannel.RETURN_ONLY:
            return listed(origin, target, *topic.partition(":")[::2])
        return channel in _STREAMED and listed(target, origin, channel, topic)
    return channel not in _STREAMED and listed(target, origin, channel, topic)


def _came(origin: str, route: object) -> bool:
    """Say whether a message came by a way that its sender began: FLARE keeps a count for each first name, for ever."""
    if not route:
        return True
    first = route[0] if isinstance(route, list) and len(route) <= _LONGEST_WAY else None
    return isinstance(first, list | tuple) and len(first) == 2 and first[0] == origin and isinstance(first[1], float)


def _brings(me: str, neighbour: str, origin: str) -> bool:
    """Say whether a neighbour may bring messages of a sender: its own, and the server or the parent those of others."""
    mine, theirs, by = (name.partition(".")[0] for name in (me, origin, neighbour))
    return by == theirs or (mine != theirs and (by == "server" or neighbour == mine))


def _concerns(me: str, origin: str, target: str) -> bool:
    """Say whether a cell takes a message, or hands it on: the server does, and a site what its job says or hears."""
    return target == me or kind(me) == "server" or "its job" in (sender(me, origin), sender(me, target))


@cache
def watch() -> None:
    """Let every cell of this process drop what is not on the lists."""
    received, noted = CoreCell.process_message, set[tuple[str, ...]]()

    def process_message(self: CoreCell, endpoint: Any, connection: Any, app_id: int, message: Any) -> None:
        me, headers = self.my_info.fqcn, message.headers if isinstance(message.headers, dict) else {}
        if accepts(me, endpoint.name, headers):
            return received(self, endpoint, connection, app_id, message)
        keys = (MessageHeaderKey.ORIGIN, MessageHeaderKey.DESTINATION, *_WAY, StreamHeaderKey.CHANNEL,
                StreamHeaderKey.TOPIC)  # fmt: skip
        said = tuple(repr(headers.get(key))[:60] for key in keys)
        if said not in noted and len(noted) < _MOST_NOTED:
            noted.add(said)
            _log.warning("%s: dropped a message that is on no list, brought by %.60r: %s", me, endpoint.name, said)

    CoreCell.process_message = process_message
    _acknowledge_by_target()


def _acknowledge_by_target() -> None:
    """Let only the one that a stream goes to say how far it came: numbers of streams can be guessed."""
    handle_ack = TxTask.handle_ack

    def by_target(self: TxTask, message: Any) -> None:
        if message.get_header(MessageHeaderKey.ORIGIN) == self.target:
            handle_ack(self, message)

    TxTask.handle_ack = by_target


@cache
def cut_commands() -> None:
    """Leave a site the commands of `COMMANDS`, and the server those of `ASKED`."""
    register, add = FedAdminAgent.register_processor, ServerCommandRegister.add_command
    ask = CommandUtil.send_request_to_clients

    def register_processor(self: FedAdminAgent, processor: RequestProcessor) -> None:
        if set(processor.get_topics()) <= COMMANDS:
            register(self, _WithJob(processor))

    def add_command(self: ServerCommandRegister, scope_name: str, cmd_name: str, *args: Any, **kwargs: Any) -> None:
        if cmd_name in ASKED:
            add(self, scope_name, cmd_name, *args, **kwargs)

    def send_request_to_clients(self: CommandUtil, conn: Any, message: Order) -> Any:
        conn.set_prop(ConnProps.CMD_TIMEOUT, _SITE_ANSWERS)
        return ask(self, conn, message)

    FedAdminAgent.register_processor = register_processor
    ServerCommandRegister.add_command = add_command
    CommandUtil.send_request_to_clients = send_request_to_clients


class _WithJob(RequestProcessor):
    """Refuse names of jobs and apps that have another form: FLARE makes folders of them, and removes folders."""

    def __init__(self, processor: RequestProcessor) -> None:
        self._processor = processor

    def get_topics(self) -> list[str]:
        """Return the topics of the command."""
        return list(self._processor.get_topics())

    def process(self, req: Order, app_ctx: Any) -> Order:
        """Do the command, if its names have their form."""
        job, app, meta = (req.get_header(key) for key in (_NAMED, RequestHeader.APP_NAME, RequestHeader.JOB_META))
        other = meta.get(_NAMED) if isinstance(meta, dict) else None
        if _is_other(_JOB, job) or _is_other(_APP, app) or other not in (None, job):
            _log.warning("refused %.60r with a job of another form: %.60r", req.topic, (job, app, other))
            return error_reply("the number of the job has another form")
        if req.topic == TrainingTopic.DEPLOY and not _is_small(req.body):
            _log.warning("refused a job that is too large, or no archive")
            return error_reply("the job is too large, or no archive")
        return self._processor.process(req, app_ctx)


def _is_small(archive: object) -> bool:
    """Say whether an archive is one, and can be unpacked: a small one may hold very much."""
    try:
        with ZipFile(BytesIO(archive)) as found:  # type: ignore[arg-type]
            sizes = [one.file_size for one in found.infolist()]
        return len(sizes) <= _MOST_FILES and sum(sizes) <= _LARGEST_APP
    except (BadZipFile, TypeError, ValueError, NotImplementedError):
        return False


def _is_other(form: re.Pattern[str], name: object) -> bool:
    """Say whether a name is there and has another form."""
    return name is not None and not (isinstance(name, str) and form.fullmatch(name))
