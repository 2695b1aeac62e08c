"""The kernel of a Python context: runs pieces of code, one after another, in one namespace.

It reads requests from the descriptor that was its standard input, and tells results in packets on copies of its
output descriptors (see packets.rs). Everything that code prints goes to standard output and error as it is. The
kernel trusts nothing that the code may have changed, and is not trusted by the server: code runs in this process, so
it can do to the kernel whatever it likes, and loses its context by it. Needs Python 3.8 and nothing else."""

import ast
import base64
import builtins
import fcntl
import inspect
import io
import json
import math
import os
import signal
import subprocess
import sys
import threading
import traceback
import types

# A packet is written at once, so nothing can come between its bytes.
PACKET_MAX = 4096
# Longest packet header: NUL, name, nonce, kind and length.
HEADER_LEN = 47
# Most characters of all formats of one result, as JSON.
RESULT_MAX = 12 << 20
# Most characters of text that is left of a result or an error that is too long.
TEXT_MAX = 1 << 20
# Most results of one execution, and their characters together.
RESULTS_MAX = 1000
RESULTS_LEN_MAX = 64 << 20
PATIENCE = 0.5


class Closed(BaseException):
    """The other side is gone, or the code closed what leads to it."""


def high(fd):
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 240)


class Wire:
    """The descriptors that lead outside."""

    def __init__(self):
        self.requests = high(0)
        self.outputs = (high(1), high(2))
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        self.identity = self.looks()
        self.nonce = None
        self.lock = threading.RLock()
        self.pid = os.getpid()

    def looks(self):
        return [(s.st_dev, s.st_ino) for s in map(os.fstat, (self.requests, *self.outputs))]

    def check(self):
        """Code that closed the descriptors may have opened others in their place."""
        try:
            is_same = self.looks() == self.identity
        except OSError:
            is_same = False
        if not is_same:
            os._exit(70)

    def read(self, length):
        pieces = []
        while length:
            try:
                piece = os.read(self.requests, min(length, 1 << 16))
            except OSError:
                raise Closed from None
            if not piece:
                raise Closed
            pieces.append(piece)
            length -= len(piece)
        return b"".join(pieces)

    def request(self):
        return json.loads(self.read(int(self.read(8), 16)))

    def send(self, message, streams=(0,)):
        nonce = self.nonce
        if nonce is None or os.getpid() != self.pid:
            return
        payload = json.dumps(message, allow_nan=False).encode("ascii")
        room = PACKET_MAX - HEADER_LEN
        pieces = [payload[at : at + room] for at in range(0, len(payload), room)]
        with deferred, self.lock:
            for stream in streams:
                for piece in pieces:
                    kind = "e" if piece is pieces[-1] else "m"
                    self.write(stream, b"\0saggar:%s:%s%04x:" % (nonce.encode(), kind.encode(), len(piece)) + piece)

    def write(self, stream, packet):
        while True:
            try:
                os.write(self.outputs[stream], packet)
                return
            except BlockingIOError:
                # The code made the pipe non-blocking.
                threading.Event().wait(0.001)
            except OSError:
                os._exit(70)


class Deferred:
    """While it is entered, an interrupt waits: half a message would be none."""

    def __init__(self):
        self.depth = 0
        self.is_pending = False

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            self.depth += 1

    def __exit__(self, *_):
        if threading.current_thread() is threading.main_thread():
            self.depth -= 1
            if self.depth == 0 and self.is_pending:
                self.is_pending = False
                if kernel.is_running:
                    raise KeyboardInterrupt


deferred = Deferred()


def on_interrupt(_signal, _frame):
    if deferred.depth:
        deferred.is_pending = True
    elif kernel.is_running and os.getpid() == kernel.wire.pid:
        raise KeyboardInterrupt
    elif os.getpid() != kernel.wire.pid:
        raise KeyboardInterrupt


# --- Results -------------------------------------------------------------------------------------------------------

FORMATS = [
    ("text/html", "_repr_html_"),
    ("text/markdown", "_repr_markdown_"),
    ("image/svg+xml", "_repr_svg_"),
    ("image/png", "_repr_png_"),
    ("image/jpeg", "_repr_jpeg_"),
    ("application/pdf", "_repr_pdf_"),
    ("text/latex", "_repr_latex_"),
    ("application/json", "_repr_json_"),
    ("application/javascript", "_repr_javascript_"),
    ("e2b/data", "_repr_e2b_data_"),
    ("e2b/chart", "_repr_e2b_chart_"),
]


def plain(value, depth=0):
    """The same value as JSON has it."""
    if depth > 20:
        return str(value)
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(bytes(value)).decode("ascii")
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(each, depth + 1) for each in value]
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "tolist"):
        return plain(value.tolist(), depth + 1)
    if hasattr(value, "item"):
        return plain(value.item(), depth + 1)
    return str(value)


def module_of(value):
    return str(getattr(type(value), "__module__", "") or "").split(".")[0]


def text_of(value):
    try:
        if isinstance(value, (dict, list, tuple, set, frozenset)):
            short = repr(value)
            if len(short) > 80 and len(short) < 100_000:
                import pprint

                try:
                    return pprint.pformat(value, width=80, compact=True, sort_dicts=False)
                except Exception:
                    return short
            return short
        return repr(value)
    except Exception as error:
        return f"<{type(value).__name__}: its __repr__ failed: {type(error).__name__}: {error}>"


def figure_formats(figure):
    out = io.BytesIO()
    figure.savefig(out, format="png", bbox_inches="tight")
    formats = {"image/png": base64.b64encode(out.getvalue()).decode("ascii")}
    try:
        chart = charts().of_figure(figure)
        if chart:
            formats["e2b/chart"] = plain(chart)
    except Exception:
        # The picture is there; a chart that can't be read has no data.
        pass
    return formats


def formats_of(value):
    """Every format that a value has."""
    formats = {"text/plain": text_of(value)}
    if isinstance(value, type):
        return formats
    bundle = method(value, "_repr_mimebundle_")
    if bundle is not None:
        try:
            given = bundle(include=None, exclude=None)
            given = given[0] if isinstance(given, tuple) else given
            if given:
                formats.update({str(kind): plain(each) for kind, each in given.items() if each is not None})
        except Exception:
            pass
    for kind, name in FORMATS:
        represent = method(value, name)
        if represent is None or kind in formats:
            continue
        try:
            given = represent()
        except Exception:
            continue
        given = given[0] if isinstance(given, tuple) and given else given
        if given is not None:
            formats[kind] = plain(given)
    if module_of(value) == "matplotlib" and hasattr(value, "savefig") and hasattr(value, "get_axes"):
        formats.update(figure_formats(value))
    if module_of(value) == "pandas" and type(value).__name__ == "DataFrame":
        try:
            formats["e2b/data"] = {str(key): plain(list(column)) for key, column in value.to_dict(orient="list").items()}
        except Exception:
            pass
    if module_of(value) == "PIL" and hasattr(value, "save") and "image/png" not in formats:
        try:
            out = io.BytesIO()
            value.save(out, format="PNG")
            formats["image/png"] = base64.b64encode(out.getvalue()).decode("ascii")
        except Exception:
            pass
    return formats


def method(value, name):
    try:
        # Objects that have every attribute have none of these.
        if getattr(value, "_this_attribute_does_not_exist_", None) is not None:
            return None
        found = getattr(value, name, None)
    except Exception:
        return None
    return found if callable(found) else None


def cut(text, most=TEXT_MAX):
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters, cut after {most})"


class Results:
    def begin(self):
        self.count = 0
        self.length = 0

    def send(self, formats, is_main):
        formats = {kind: each for kind, each in formats.items() if each is not None}
        formats = {kind: json.loads(json.dumps(plain(each))) for kind, each in formats.items()}
        length = sum(len(json.dumps(each)) for each in formats.values())
        if length > RESULT_MAX:
            text = formats.get("text/plain")
            formats = {"text/plain": cut(text) if isinstance(text, str) else ""}
            note = f"saggar: a result of {length} characters was cut: results are limited to {RESULT_MAX}\n"
            kernel.print_error(note)
            length = sum(len(each) for each in formats.values())
        self.count += 1
        self.length += length
        if self.count > RESULTS_MAX or self.length > RESULTS_LEN_MAX:
            if not is_main:
                raise RuntimeError(
                    f"too many results: one execution may have {RESULTS_MAX}, of {RESULTS_LEN_MAX} characters together"
                )
            formats = {"text/plain": cut(str(formats.get("text/plain", "")), 1000)}
        kernel.flush()
        kernel.wire.send({"type": "result", "main": is_main, "formats": formats})


def display(*values, include=None, exclude=None, metadata=None, transient=None, display_id=None, raw=False, clear=False, **_):
    """Shows values as results of this execution, in every format that they have."""
    for value in values:
        if raw:
            kernel.results.send({str(kind): plain(each) for kind, each in value.items()}, False)
            continue
        own = method(value, "_ipython_display_")
        if own is not None and not isinstance(value, type):
            own()
            continue
        formats = formats_of(value)
        if include:
            formats = {kind: each for kind, each in formats.items() if kind in include}
        if exclude:
            formats = {kind: each for kind, each in formats.items() if kind not in exclude}
        kernel.results.send(formats, False)


def publish_display_data(data, metadata=None, source=None, *, transient=None, **_):
    kernel.results.send({str(kind): plain(each) for kind, each in data.items()}, False)


_charts = None


def charts():
    global _charts
    if _charts is None:
        _charts = types.ModuleType("saggar_charts")
        exec(compile(CHARTS, "<saggar charts>", "exec"), _charts.__dict__)
    return _charts


# --- Libraries that know IPython -----------------------------------------------------------------------------------


class Hooks:
    """Changes modules right after they were imported."""

    def __init__(self, hooks):
        self.hooks = hooks

    def find_spec(self, name, path=None, target=None):
        hook = self.hooks.get(name)
        if hook is None:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
                spec.loader = Loader(spec.loader, hook)
                return spec
        return None


class Loader:
    def __init__(self, loader, hook):
        self.loader, self.hook = loader, hook

    def __getattr__(self, name):
        return getattr(self.loader, name)

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)
        try:
            self.hook(module)
        except Exception:
            # A library of another version works as it is.
            pass


def after_ipython_display(module):
    module.display = display
    module.publish_display_data = publish_display_data
    module.clear_output = lambda wait=False: None


def after_matplotlib(module):
    if not os.environ.get("MPLBACKEND"):
        module.rcParams["backend"] = "agg"


def after_pyplot(module):
    def show(*_, **__):
        kernel.show_figures()

    module.show = show


def ipython_stand_in():
    """What programs take from IPython for showing things, where it is not installed."""

    class Shown:
        kind = "text/plain"

        def __init__(self, data=None, url=None, filename=None, metadata=None, **_):
            if filename is not None:
                with open(filename, "rb") as file:
                    data = file.read()
                if not self.kind.startswith("image/") or self.kind == "image/svg+xml":
                    data = data.decode()
            if data is None and url is not None:
                import urllib.request

                data = urllib.request.urlopen(url).read()
            self.data = data

        def _repr_mimebundle_(self, include=None, exclude=None):
            return {self.kind: self.data}

        def __repr__(self):
            return f"<IPython.core.display.{type(self).__name__} object>"

    def shown(name, kind):
        return type(name, (Shown,), {"kind": kind, "__module__": "IPython.core.display"})

    class Image(Shown):
        def __init__(self, data=None, url=None, filename=None, format=None, **_):
            if isinstance(data, str) and filename is None and os.path.exists(data):
                filename, data = data, None
            super().__init__(data, url, filename)
            is_jpeg = str(format or "").lower() in ("jpg", "jpeg") or bytes(self.data or b"")[:2] == b"\xff\xd8"
            self.kind = "image/jpeg" if is_jpeg else "image/png"

    display_module = types.ModuleType("IPython.display")
    for name, kind in [
        ("HTML", "text/html"),
        ("Markdown", "text/markdown"),
        ("SVG", "image/svg+xml"),
        ("Latex", "text/latex"),
        ("Math", "text/latex"),
        ("JSON", "application/json"),
        ("Javascript", "application/javascript"),
        ("Pretty", "text/plain"),
    ]:
        setattr(display_module, name, shown(name, kind))
    display_module.Image = Image
    display_module.DisplayObject = Shown
    display_module.display = display
    display_module.publish_display_data = publish_display_data
    display_module.clear_output = lambda wait=False: None
    for name, kind in [("html", "text/html"), ("markdown", "text/markdown"), ("svg", "image/svg+xml"), ("png", "image/png"), ("latex", "text/latex"), ("json", "application/json"), ("javascript", "application/javascript"), ("pdf", "application/pdf"), ("jpeg", "image/jpeg")]:
        setattr(display_module, f"display_{name}", (lambda kind: lambda *values, raw=False, **_: [publish_display_data({kind: value}) if raw else display(value) for value in values] and None)(kind))
    package = types.ModuleType("IPython")
    package.__path__ = []
    package.__version__ = "0"
    package.display = display_module
    package.get_ipython = lambda: None
    core = types.ModuleType("IPython.core")
    core.__path__ = []
    core_display = types.ModuleType("IPython.core.display")
    core_display.__dict__.update({k: v for k, v in display_module.__dict__.items() if not k.startswith("__")})
    return {"IPython": package, "IPython.display": display_module, "IPython.core": core, "IPython.core.display": core_display}


class StandIns:
    """The last finder: IPython's stand-in comes only if nothing else has that name."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] != "IPython":
            return None
        made = kernel.stand_ins = kernel.stand_ins or ipython_stand_in()
        if name not in made:
            return None
        import importlib.machinery

        return importlib.machinery.ModuleSpec(name, self, is_package=hasattr(made[name], "__path__"))

    def create_module(self, spec):
        return kernel.stand_ins[spec.name]

    def exec_module(self, module):
        pass


# --- Lines for the shell, and magics -------------------------------------------------------------------------------


class UsageError(Exception):
    """A magic that isn't there, or is used wrongly."""


class StdinNotImplementedError(RuntimeError):
    """Code asked for input."""


def no_input(prompt="", *_, **__):
    raise StdinNotImplementedError("input() isn't available: code runs without a terminal; give it the value instead")


def expanded(line):
    """`{name}` and `$name` are variables, as in IPython."""
    import re

    namespace = kernel.namespace

    def braces(match):
        try:
            return str(eval(match.group(1), namespace))
        except Exception:
            return match.group(0)

    def dollar(match):
        name = match.group(1)
        return str(namespace[name]) if name in namespace and not callable(namespace[name]) else match.group(0)

    line = re.sub(r"\{([^{}]+)\}", braces, line)
    return re.sub(r"(?<!\$)\$([A-Za-z_]\w*)", dollar, line)


def shell_words(line):
    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    return [shell, "-c", expanded(line)]


def system(line):
    kernel.flush()
    child = subprocess.Popen(shell_words(line), stdin=subprocess.DEVNULL)
    try:
        kernel.namespace["_exit_code"] = child.wait()
    except KeyboardInterrupt:
        child.kill()
        child.wait()
        raise


def getoutput(line):
    kernel.flush()
    return subprocess.run(shell_words(line), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout.splitlines()


def magic(name, rest):
    """A line magic. Those that only set up a notebook do nothing."""
    import shlex
    import time

    rest = rest.strip()
    if name == "cd":
        where = os.path.expanduser(expanded(rest) or "~")
        os.chdir(where)
        print(os.getcwd())
    elif name == "pwd":
        return os.getcwd()
    elif name in ("pip", "uv"):
        first = [sys.executable, "-m", "pip"] if name == "pip" else ["uv", "pip" if rest.startswith("pip ") else ""]
        if name == "uv":
            return system(f"uv {rest}")
        kernel.flush()
        subprocess.run([*first, *shlex.split(expanded(rest))], stdin=subprocess.DEVNULL)
        import importlib

        importlib.invalidate_caches()
    elif name in ("conda", "mamba", "ls", "cat", "mkdir", "rm", "cp", "mv", "man", "more", "less", "head", "tail", "npm", "git"):
        system(f"{name} {rest}")
    elif name in ("sh", "bash", "sx", "system", "!"):
        system(rest)
    elif name in ("env", "set_env"):
        if not rest:
            return dict(os.environ)
        key, _, value = rest.partition("=" if "=" in rest else " ")
        if not value and "=" not in rest and name == "env":
            return os.environ.get(key.strip())
        os.environ[key.strip()] = expanded(value.strip())
        print(f"env: {key.strip()}={value.strip()}")
    elif name == "time":
        begun, used = time.perf_counter(), time.process_time()
        value = kernel.evaluate(rest)
        print(f"CPU times: total {(time.process_time() - used) * 1000:.3g} ms")
        print(f"Wall time: {(time.perf_counter() - begun) * 1000:.3g} ms")
        return value
    elif name == "timeit":
        import timeit

        timer = timeit.Timer(rest, globals=kernel.namespace)
        number, taken = timer.autorange()
        best = min([taken, *timer.repeat(4, number)]) / number
        print(f"{best * 1e6:.3g} µs per loop (best of 5 runs, {number} loops each)")
    elif name == "run":
        import runpy

        words = shlex.split(expanded(rest))
        if not words:
            raise UsageError("%run needs a file")
        before, sys.argv = sys.argv, words
        try:
            kernel.namespace.update({k: v for k, v in runpy.run_path(words[0], run_name="__main__").items() if not k.startswith("__")})
        finally:
            sys.argv = before
    elif name in ("who", "who_ls", "whos"):
        names = sorted(each for each in kernel.namespace if not each.startswith("_") and each not in kernel.given)
        if name == "who_ls":
            return names
        print("\t".join(names))
    elif name == "reset":
        kernel.reset()
    elif name in ("matplotlib", "autoreload", "load_ext", "reload_ext", "unload_ext", "config", "precision", "pylab", "colors", "xmode", "pprint", "automagic", "autosave", "gui"):
        pass
    else:
        raise UsageError(f"there is no magic %{name} here; %cd, %pip, %env, %time, %run and !command are")


def cell_magic(name, rest, body):
    import time

    if name in ("bash", "sh", "script", "system", "sx", "!"):
        kernel.flush()
        shell = "/bin/sh" if name == "sh" or not os.path.exists("/bin/bash") else "/bin/bash"
        words = rest.split() if name == "script" and rest else [shell]
        done = subprocess.run(words, input=body.encode())
        kernel.namespace["_exit_code"] = done.returncode
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, words)
    elif name == "writefile":
        words = rest.split()
        is_added = "-a" in words or "--append" in words
        words = [word for word in words if not word.startswith("-")]
        if len(words) != 1:
            raise UsageError("%%writefile needs the name of a file")
        path = os.path.expanduser(words[0])
        print(("Appending to " if is_added else "Overwriting " if os.path.exists(path) else "Writing ") + words[0])
        with open(path, "a" if is_added else "w") as file:
            file.write(body)
    elif name in ("time", "timeit"):
        begun = time.perf_counter()
        kernel.execute(body)
        print(f"Wall time: {(time.perf_counter() - begun) * 1000:.3g} ms")
    elif name == "capture":
        import contextlib

        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            kernel.execute(body, is_quiet=True)
    elif name in ("html", "HTML"):
        publish_display_data({"text/html": body})
    elif name in ("markdown",):
        publish_display_data({"text/markdown": body})
    elif name in ("latex",):
        publish_display_data({"text/latex": body})
    elif name in ("javascript", "js"):
        publish_display_data({"application/javascript": body})
    elif name in ("svg", "SVG"):
        publish_display_data({"image/svg+xml": body})
    else:
        raise UsageError(f"there is no magic %%{name} here; %%bash, %%writefile, %%time and %%capture are")


def without_magics(code):
    """Lines that aren't Python, as calls. Only for code that doesn't parse as it is."""
    import re

    lines, out = code.split("\n"), []
    at = 0
    while at < len(lines):
        line = lines[at]
        while (line.lstrip().startswith(("!", "%")) or re.match(r"^\s*[\w.\[\], ]+=\s*[!%]", line)) and line.endswith("\\") and at + 1 < len(lines):
            at += 1
            line = line[:-1] + lines[at]
        indent = line[: len(line) - len(line.lstrip())]
        rest = line.lstrip()
        assigned = re.match(r"^([\w.\[\], ]+?)\s*=\s*([!%])(.*)$", rest)
        if rest.startswith("!"):
            out.append(f"{indent}__saggar_system__({rest.lstrip('!')!r})")
        elif rest.startswith("%") and re.match(r"^%[A-Za-z_]", rest):
            name, _, more = rest[1:].partition(" ")
            out.append(f"{indent}__saggar_magic__({name!r}, {more!r})")
        elif assigned and assigned.group(2) == "!":
            out.append(f"{indent}{assigned.group(1)} = __saggar_getoutput__({assigned.group(3)!r})")
        elif assigned and re.match(r"^[A-Za-z_]", assigned.group(3)):
            name, _, more = assigned.group(3).partition(" ")
            out.append(f"{indent}{assigned.group(1)} = __saggar_magic__({name!r}, {more!r})")
        elif re.match(r"^[\w.]+\?{1,2}$", rest):
            out.append(f"{indent}help({rest.rstrip('?')})")
        else:
            out.append(line)
        at += 1
    return "\n".join(out)


# --- The kernel ----------------------------------------------------------------------------------------------------


class Kernel:
    def __init__(self):
        self.wire = None
        self.results = Results()
        self.is_running = False
        self.count = 0
        self.loop = None
        self.stand_ins = None
        self.is_hooked = False
        self.namespace = {}
        self.given = set()

    def open(self):
        self.wire = Wire()
        self.reset()
        signal.signal(signal.SIGINT, on_interrupt)
        if not self.is_hooked:
            sys.meta_path.insert(0, self.hooks())
            sys.meta_path.append(StandIns())

    def hooks(self):
        return Hooks(
            {
                "IPython.core.display_functions": after_ipython_display,
                "matplotlib": after_matplotlib,
                "matplotlib.pyplot": after_pyplot,
            }
        )

    def reset(self):
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        self.namespace = main.__dict__
        self.namespace.update(
            {
                "__builtins__": builtins,
                "display": display,
                "get_ipython": lambda: None,
                "__saggar_system__": system,
                "__saggar_getoutput__": getoutput,
                "__saggar_magic__": magic,
            }
        )
        self.given = set(self.namespace)

    def flush(self):
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            try:
                stream.flush()
            except Exception:
                # The code may have closed or replaced it.
                pass

    def print_error(self, text):
        try:
            sys.__stderr__.write(text)
            sys.__stderr__.flush()
        except Exception:
            pass

    def serve(self):
        while True:
            try:
                request = self.wire.request()
            except (Closed, ValueError):
                os._exit(0)
            self.run(request)

    def run(self, request):
        self.wire.nonce = request["nonce"]
        self.results.begin()
        self.count += 1
        signal.signal(signal.SIGINT, on_interrupt)
        builtins.input = no_input
        changed = {name: os.environ.get(name) for name in request.get("env", {})}
        os.environ.update(request.get("env", {}))
        error = None
        self.wire.send({"type": "begin"}, (0, 1))
        try:
            try:
                self.is_running = True
                self.execute(request["code"])
                self.show_figures()
            finally:
                self.is_running = False
        except BaseException as raised:
            error = raised
        if os.getpid() != self.wire.pid:
            # A child that the code forked, and that came back here.
            self.flush()
            os._exit(0 if error is None else 1)
        with deferred:
            self.wire.check()
            for name, value in changed.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            self.flush()
            if error is not None:
                self.tell(error)
                del error
            self.wire.send({"type": "end", "count": self.count}, (0, 1))
            self.wire.nonce = None
            deferred.is_pending = False

    def tell(self, error):
        name = type(error).__name__
        try:
            value = str(error)
        except BaseException:
            value = ""
        try:
            if isinstance(error, SyntaxError) and not any(is_code(frame.filename) for frame in traceback.extract_tb(error.__traceback__)):
                text = "".join(traceback.format_exception_only(type(error), error))
            else:
                told = traceback.TracebackException(type(error), error, error.__traceback__, capture_locals=False)
                strip(told)
                text = "".join(told.format())
        except BaseException:
            text = f"{name}: {value}\n"
        self.wire.send({"type": "error", "name": name, "value": cut(value), "traceback": cut(text, 1 << 18)})

    def execute(self, code, is_quiet=False):
        stripped = code.lstrip()
        if stripped.startswith("%%"):
            first, _, body = stripped.partition("\n")
            name, _, rest = first[2:].partition(" ")
            return cell_magic(name, rest.strip(), body)
        name = f"<cell {self.count}>"
        try:
            tree = ast.parse(code, name)
        except SyntaxError:
            changed = without_magics(code)
            if changed == code:
                raise
            tree = ast.parse(changed, name)
        import linecache

        linecache.cache[name] = (len(code), None, [f"{line}\n" for line in code.split("\n")], name)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)
        if tree.body:
            self.evaluate_tree(tree, name, "exec")
        if last is not None:
            value = self.evaluate_tree(last, name, "eval")
            if value is not None and not is_quiet and not code.rstrip().endswith(";"):
                self.namespace["_"] = value
                self.show_main(value)

    def evaluate(self, code):
        return self.evaluate_tree(ast.parse(code, "<magic>", "eval"), "<magic>", "eval")

    def evaluate_tree(self, tree, name, mode):
        compiled = compile(tree, name, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        if not compiled.co_flags & inspect.CO_COROUTINE:
            return eval(compiled, self.namespace)
        import asyncio

        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        task = self.loop.create_task(types.FunctionType(compiled, self.namespace)())
        try:
            return self.loop.run_until_complete(task)
        except BaseException:
            if not task.done():
                task.cancel()
                waited = asyncio.wait([task], timeout=PATIENCE)
                self.loop.run_until_complete(waited)
            raise

    def show_main(self, value):
        if method(value, "_ipython_display_") is not None and not isinstance(value, type):
            value._ipython_display_()
            return
        formats = formats_of(value)
        if module_of(value) == "matplotlib" and hasattr(value, "savefig"):
            self.close_figure(value)
        text = formats.get("text/plain")
        # As text of a string, the string itself.
        if isinstance(value, str) and isinstance(text, str) and len(text) >= 2:
            formats["text/plain"] = str.__str__(value)
        self.results.send(formats, True)

    def close_figure(self, figure):
        pyplot = sys.modules.get("matplotlib.pyplot")
        try:
            pyplot.close(figure)
        except Exception:
            pass

    def show_figures(self):
        """Figures that were drawn and not shown, as a notebook shows them."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None:
            return
        try:
            from matplotlib._pylab_helpers import Gcf

            figures = [holder.canvas.figure for holder in Gcf.get_all_fig_managers()]
        except Exception:
            return
        for figure in figures:
            try:
                if figure.get_axes() or getattr(figure, "texts", None):
                    display(figure)
            finally:
                self.close_figure(figure)


def is_code(filename):
    return filename.startswith(("<cell", "<magic"))


def strip(told, depth=0):
    """Leaves out the kernel's own frames."""
    if told is None or depth > 50:
        return
    frames = list(told.stack)
    first = next((at for at, frame in enumerate(frames) if is_code(frame.filename)), None)
    if first is None:
        # Interrupted while it waited: what is left is how the kernel waits.
        last = max((at for at, frame in enumerate(frames) if frame.filename == "<saggar kernel>"), default=-1)
        is_waiting = any("asyncio" in frame.filename for frame in frames[last + 1 :])
        first = len(frames) if is_waiting else last + 1
    kept = [frame for frame in frames[first:] if frame.filename != "<saggar kernel>"]
    del told.stack[:]
    told.stack.extend(kept)
    strip(told.__cause__, depth + 1)
    strip(told.__context__, depth + 1)


kernel = Kernel()


def main(hello):
    """Called by the first lines of the program, with the first request."""
    kernel.open()
    kernel.wire.nonce = hello["nonce"]
    sys.argv = [""]
    kernel.wire.send({"type": "ready", "version": sys.version.split()[0]})
    kernel.wire.nonce = None
    kernel.serve()
