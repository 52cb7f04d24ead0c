"""Programs that attack the grader or the machine, and the levels that claim to stop each.

Every program is HumanEval's kind of thing: the tests ask for ``square``. ``{...}`` stand for what a
test puts there: a file of this user's and one in the home, a folder of another sample, a port that
listens, a folder to leave traces in, a mark to know processes and files by, pipes to leave alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from river_llm.grading.sandbox_levels import CONTAINING

EVERY = (*CONTAINING, "process")


@dataclass(frozen=True)
class Hostile:
    """One program.

    Attributes:
        name: What it tries.
        source: Its text, with places for `str.replace`.
        levels: Those that claim to stop it: it gets no pass and leaves nothing behind.
        timeout_s: Time it is given; what runs on purpose without end is given little.
    """

    name: str
    source: str
    levels: tuple[str, ...] = EVERY
    timeout_s: float = 10.0


RIGHT = "def square(x):\n    return x * x\n"
_ENDLESS = "while True:\n    pass\n"
_ON_SUCCESS = "\ndef square(x):\n    return x * x\n"
"""The right answer only if the attack above got through: a pass is then a breach."""

FORGED_VERDICT = [
    Hostile("exit with status 0", "import sys\nsys.exit(0)\n"),
    Hostile("os._exit(0) at import", "import os\nos._exit(0)\n"),
    Hostile("os._exit(0) in the call", "def square(x):\n    import os\n    os._exit(0)\n"),
    Hostile("SystemExit in the call", "def square(x):\n    raise SystemExit(0)\n"),
    Hostile("KeyboardInterrupt", "raise KeyboardInterrupt\n"),
    Hostile(
        "printed word",
        "import os\nprint('passed', flush=True)\nos.write(1, b'passed')\nos._exit(0)\n",
    ),
    Hostile(
        "success on every descriptor",
        "import json, os\n"
        "for d in range(3, 64):\n"
        "    for line in ({'status': 'passed', 'detail': ''}, {'names': {}}, {'value': 4}):\n"
        "        try:\n            os.write(d, (json.dumps(line) + '\\n').encode())\n"
        "        except OSError:\n            pass\n"
        "os._exit(0)\n",
    ),
    Hostile(
        "object equal to everything",
        "class Any:\n"
        "    def __eq__(self, other):\n        return True\n"
        "    __hash__ = None\n"
        "def square(x):\n    return Any()\n",
    ),
    Hostile(
        "integer equal to everything",
        "class Any(int):\n"
        "    def __eq__(self, other):\n        return True\n"
        "    __hash__ = int.__hash__\n"
        "def square(x):\n    return Any(7)\n",
    ),
    Hostile(
        "AssertionError replaced",
        "import builtins\n"
        "class Quiet(BaseException):\n    def __new__(cls, *a):\n        raise SystemExit(0)\n"
        "builtins.AssertionError = Quiet\n"
        "def square(x):\n    return 5\n",
    ),
    Hostile(
        "builtins patched",
        "import builtins, os\n"
        "builtins.compile = lambda *a, **k: (lambda: None).__code__\n"
        "builtins.exec = builtins.callable = lambda *a, **k: True\n"
        "builtins.BaseException = builtins.Exception = ()\n"
        "def square(x):\n    return 5\n",
    ),
    Hostile(
        "check defined by the program",
        "def check(candidate):\n    return None\ndef square(x):\n    return 5\n",
    ),
    Hostile(
        "report forged through the harness's descriptors",
        "import os, signal\n"
        "def parent(p):\n"
        "    return int(open(f'/proc/{p}/stat').read().rpartition(')')[2].split()[1])\n"
        "supervisor = os.getppid()\n"
        "opened = []\n"
        "folder = f'/proc/{parent(supervisor)}/fd'\n"
        "for d in os.listdir(folder):\n"
        "    try:\n"
        "        link = os.readlink(f'{folder}/{d}')\n"
        "        if not link.startswith(('pipe:', 'socket:')) or link in {pipes}:\n"
        "            continue\n"
        "        opened.append(os.open(f'{folder}/{d}', os.O_WRONLY | os.O_NONBLOCK))\n"
        "    except OSError:\n        pass\n"
        "os.kill(supervisor, signal.SIGSTOP)\n"
        "for d in opened:\n"
        "    try:\n"
        '        os.write(d, b\'{"status": "passed", "detail": ""}\\n\')\n'
        "    except OSError:\n        pass\n"
        "os.kill(supervisor, signal.SIGKILL)\n",
    ),
    Hostile(
        "check replaced in every module and frame",
        "import gc, sys, types\n"
        "def square(x):\n"
        "    frame = sys._getframe()\n"
        "    while frame:\n"
        "        frame.f_globals['check'] = lambda c: None\n"
        "        frame = frame.f_back\n"
        "    for each in gc.get_objects():\n"
        "        if isinstance(each, types.FunctionType) and each.__name__ == 'check':\n"
        "            each.__code__ = (lambda candidate: None).__code__\n"
        "    return 5\n",
    ),
    Hostile(
        "checker's module patched",
        "import json, os, sys\n"
        "main = sys.modules['__main__']\n"
        "main.encode = lambda *a, **k: 4\n"
        "main._check = main._verdict = main.message = lambda *a, **k: 'passed'\n"
        'json.dumps = lambda *a, **k: \'{"status": "passed", "detail": ""}\'\n'
        "def square(x):\n    return 5\n",
    ),
    Hostile(
        "token looked for in memory and frames",
        "import gc, os, re, sys\n"
        "def square(x):\n"
        "    frame, text = sys._getframe(), ''\n"
        "    while frame:\n        text += repr(frame.f_locals)\n        frame = frame.f_back\n"
        "    text += repr([o for o in gc.get_objects() if isinstance(o, (dict, list))][:2000])\n"
        "    for token in set(re.findall(r'[0-9a-f]{32}', text)):\n"
        '        line = token + \'{"status": "passed", "detail": ""}\\n\'\n'
        "        for d in range(3, 64):\n"
        "            try:\n                os.write(d, line.encode())\n"
        "            except OSError:\n                pass\n"
        "    os._exit(0)\n",
    ),
    Hostile(
        "tests looked for in memory and frames",
        "import gc, re, sys\n"
        "frame, text = sys._getframe(), ''\n"
        "while frame:\n"
        "    text += repr(frame.f_locals) + repr(frame.f_globals)\n    frame = frame.f_back\n"
        "text += repr([o for o in gc.get_objects() if isinstance(o, (dict, list, tuple))])\n"
        "assert ''.join(['candidate', '(2)', ' == 4']) in text" + _ON_SUCCESS,
    ),
    Hostile(
        "trace function that jumps over the assertions",
        "import sys, threading\n"
        "def trace(frame, event, arg):\n"
        "    if frame.f_code.co_name == 'check':\n        frame.f_lineno += 1\n"
        "    return trace\n"
        "sys.settrace(trace)\nthreading.settrace(trace)\n"
        "def square(x):\n    return 5\n",
    ),
    Hostile(
        "exit handler that raises the status",
        "import atexit, os\natexit.register(os._exit, 0)\nraise RuntimeError\n",
    ),
    Hostile(
        "fork whose two sides both answer",
        "import os\nos.fork()\ndef square(x):\n    return 5\n",
    ),
]

HOG = [
    Hostile("endless loop", _ENDLESS, timeout_s=0.7),
    Hostile(
        "endless loop behind signal handlers",
        "import signal\n"
        "for number in range(1, 65):\n"
        "    try:\n        signal.signal(number, lambda *a: None)\n"
        "    except (OSError, ValueError):\n        pass\n" + _ENDLESS,
        timeout_s=0.7,
    ),
    Hostile(
        "stopped process",
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\nimport time\ntime.sleep(600)\n",
        timeout_s=0.7,
    ),
    Hostile("memory hog", "def square(x):\n    return bytearray(6 << 30)\n"),
    Hostile("deep recursion", "def square(x):\n    return square(x)\n"),
    Hostile(
        "deep recursion without the interpreter's limit",
        "import sys\nsys.setrecursionlimit(10**9)\n"
        "class A:\n    def __repr__(self):\n        return repr(self)\n"
        "def square(x):\n    return repr(A())\n",
    ),
    Hostile("huge int to string", "def square(x):\n    return str(10 ** 10 ** 6)\n"),
    Hostile("huge int", "def square(x):\n    return 10 ** 10 ** 9\n", timeout_s=0.7),
    Hostile(
        "endless generator",
        "import itertools\ndef square(x):\n    return itertools.count()\n",
    ),
    Hostile(
        "list nested without end",
        "def square(x):\n    a = []\n    a.append(a)\n    return a\n",
    ),
    Hostile(
        "endless output",
        "import sys\n"
        "while True:\n    print('x' * 65536)\n    print('x' * 65536, file=sys.stderr)\n",
        timeout_s=0.7,
    ),
    Hostile(
        "flood on the channel",
        "import os\nwhile True:\n"
        "    for d in range(3, 16):\n"
        "        try:\n            os.write(d, b'x' * 65536)\n"
        "        except OSError:\n            pass\n",
        timeout_s=2.0,
    ),
    Hostile("reading stdin", "def square(x):\n    return int(input())\n"),
    Hostile(
        "huge file",
        "def square(x):\n    open('f', 'wb').write(bytes(200 << 20))\n    return x * x\n",
    ),
    Hostile(
        "many files that fill the disk",
        "import os\n"
        "for n in range(20):\n    open(f'f{n}', 'wb').write(bytes(16 << 20))" + _ON_SUCCESS,
        CONTAINING,
    ),
    Hostile(
        "folders nested a thousand deep",
        "import os\nfor _ in range(1000):\n    os.mkdir('d')\n    os.chdir('d')\n"
        "def square(x):\n    return 5\n",
    ),
    Hostile(
        "fork bomb",
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n",
        CONTAINING,
        timeout_s=1.0,
    ),
    Hostile(
        "thread bomb",
        "import threading, time\n"
        "for _ in range(5000):\n"
        "    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()" + _ON_SUCCESS,
        CONTAINING,
    ),
    Hostile("crash of the interpreter", "import ctypes\nctypes.string_at(0)\n"),
    Hostile(
        "CPU limit raised",
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))\n"
        "resource.setrlimit(resource.RLIMIT_NPROC, (-1, -1))" + _ON_SUCCESS,
        CONTAINING,
    ),
]

_DAEMON = (
    "import os, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        for d in range(0, 64):\n"
    "            try:\n                os.close(d)\n"
    "            except OSError:\n                pass\n"
    "        while True:\n"
    "            time.sleep(0.05)\n"
    "    os._exit(0)\n"
)

SURVIVOR = [
    Hostile("daemon child", _DAEMON + "def square(x):\n    return 5\n"),
    Hostile("daemon child, endless parent", _DAEMON + _ENDLESS, timeout_s=0.7),
    Hostile(
        "detached subprocess",
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)  # {mark}'],\n"
        "    start_new_session=True, env={})\n"
        "def square(x):\n    return 5\n",
    ),
    Hostile(
        "kill of every process",
        "import os, signal\nos.kill(-1, signal.SIGKILL)\ndef square(x):\n    return 5\n",
        CONTAINING,
    ),
    Hostile(
        "kill of parent and harness",
        "import os, signal\n"
        "for pid in (os.getppid(), {harness}):\n"
        "    try:\n        os.kill(pid, signal.SIGKILL)\n    except OSError:\n        pass\n"
        "def square(x):\n    return 5\n",
        CONTAINING,
    ),
]

INTRUDER = [
    Hostile("reading a file of the user's", "open('{secret}').read()" + _ON_SUCCESS, CONTAINING),
    Hostile(
        "reading the user's home",
        "import os\nassert os.path.exists('{homely}')" + _ON_SUCCESS,
        CONTAINING,
    ),
    Hostile(
        "reading another sample's folder",
        "import os\nopen(os.path.join('{other}', 'answer')).read()" + _ON_SUCCESS,
        CONTAINING,
    ),
    Hostile(
        "looking for other samples' folders",
        "import glob, os, tempfile\n"
        "own = os.getcwd()\n"
        "found = [p for p in glob.glob('/tmp/*') + glob.glob(own + '/../river-llm-*')\n"
        "         if os.path.realpath(p) != own]\n"
        "assert found" + _ON_SUCCESS,
        CONTAINING,
    ),
    Hostile(
        "deleting files",
        "import os, shutil\n"
        "shutil.rmtree('{other}', ignore_errors=True)\n"
        "os.remove('{secret}')" + _ON_SUCCESS,
        CONTAINING,
    ),
    Hostile(
        "deleting the interpreter's library",
        "import os, sys\nos.remove(os.path.join(os.path.dirname(os.__file__), 'this.py'))"
        + _ON_SUCCESS,
        CONTAINING,
    ),
    Hostile(
        "writing anywhere",
        "import os, sys\n"
        "done = 0\n"
        "for folder in ('/', '/usr', '/etc', '/dev', '/var/tmp', '/dev/shm', '{traces}',\n"
        "               '{home}', sys.prefix, sys.base_prefix, os.path.dirname(os.__file__)):\n"
        "    try:\n"
        "        open(os.path.join(folder, '{mark}'), 'w').close()\n        done += 1\n"
        "    except OSError:\n        pass\n"
        "assert done" + _ON_SUCCESS,
        CONTAINING,
    ),
    Hostile(
        "symlink out of the folder",
        "import os\n"
        "os.symlink('{secret}', 'link')\nos.symlink('{traces}', 'folder')\n"
        "try:\n    open('folder/{mark}', 'w').close()\n"
        "except OSError:\n    open('link').read()" + _ON_SUCCESS,
        CONTAINING,
    ),
    Hostile(
        "folder replaced by a symlink",
        "import os\n"
        "own = os.getcwd()\nos.chdir('/')\nos.rmdir(own)\nos.symlink('{other}', own)\n" + RIGHT,
        CONTAINING,
    ),
    Hostile(
        "hard link out of the folder",
        "import os\nos.link('{secret}', 'link')\nopen('link').read()" + _ON_SUCCESS,
        CONTAINING,
    ),
    Hostile(
        "remount of the file system",
        "import ctypes, os\n"
        "libc = ctypes.CDLL(None)\n"
        "assert libc.mount(b'none', b'/', None, 32 | 4096, None) == 0 or "
        "libc.umount2(b'/usr', 2) == 0 or libc.chroot(b'/tmp') == 0" + _ON_SUCCESS,
        CONTAINING,
    ),
    Hostile(
        "connection to a listener",
        "import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)" + _ON_SUCCESS,
        CONTAINING,
    ),
    Hostile(
        "connection to an abstract socket",
        "import socket\n"
        "client = socket.socket(socket.AF_UNIX)\nclient.connect('\\x00{mark}')" + _ON_SUCCESS,
        CONTAINING,
    ),
    Hostile(
        "name server",
        "import socket\n"
        "client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "client.sendto(b'x', ('192.0.2.1', 53))" + _ON_SUCCESS,
        CONTAINING,
    ),
    Hostile(
        "secret of the environment",
        "import os\n"
        "text = repr(os.environ)\n"
        "try:\n    text += open('/proc/self/environ').read()\n"
        "    text += open(f'/proc/{os.getppid()}/environ').read()\n"
        "except OSError:\n    pass\n"
        "assert '{environment}' in text" + _ON_SUCCESS,
    ),
    Hostile(
        "descriptor of the harness",
        "import os\n"
        "found = []\n"
        "for d in range(256):\n"
        "    try:\n        found.append(os.fstat(d).st_ino)\n"
        "    except OSError:\n        pass\n"
        "assert {inode} in found" + _ON_SUCCESS,
    ),
    Hostile(
        "memory of the parent",
        "import os\nopen(f'/proc/{os.getppid()}/mem', 'rb').seek(0)" + _ON_SUCCESS,
        CONTAINING,
    ),
    Hostile(
        "back to root",
        "import os\nos.setuid(0)\nos.setgid(0)\nassert open('/etc/shadow').read()" + _ON_SUCCESS,
        CONTAINING,
    ),
]

PROGRAMS = [*FORGED_VERDICT, *HOG, *SURVIVOR, *INTRUDER]
